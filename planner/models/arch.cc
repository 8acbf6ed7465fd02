#include "planner/models/arch.h"

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

}  // namespace

absl::StatusOr<Json> ParseJsonObject(const std::string& what, absl::string_view text) {
  if (absl::StrContains(text, '\0')) {
    // The library takes it for the end of the text.
    return Error(ErrorCode::kMalformed, absl::StrCat(what, " is not JSON: a NUL byte at offset ", text.find('\0')));
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Error(ErrorCode::kMalformed, absl::StrCat(what, " is not JSON"));
  if (!twice.empty()) return Error(ErrorCode::kMalformed, absl::StrCat(what, " has the field \"", twice, "\" twice"));
  if (!json.is_object()) return Error(ErrorCode::kMalformed, absl::StrCat(what, " must be an object"));
  return json;
}

Arch::Arch(std::string path, const Json& json) : path_(std::move(path)), json_(json) {
  if (!json_.is_object()) Fail(Error(ErrorCode::kMalformed, absl::StrCat("\"", path_, "\" must be an object")));
}

std::string Arch::Path(const std::string& field) const {
  return absl::StrCat("\"", path_, path_.empty() ? "" : ".", field, "\"");
}

void Arch::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void Arch::Adopt(const absl::Status& status) {
  if (!status.ok()) Fail(status);
}

const Json* Arch::Find(const std::string& field, bool required) {
  read_[field] = true;
  if (Has(field)) return &json_[field];
  if (required) Fail(Error(ErrorCode::kMalformed, absl::StrCat(Path(field), " is missing")));
  return nullptr;
}

Index Arch::Read(const std::string& field, const Json& value, Index least, Index most) {
  if (!value.is_number_integer()) {
    Fail(Error(ErrorCode::kMalformed, absl::StrCat(Path(field), " must be a whole number")));
    return least;
  }
  // An unsigned number past 2^63 would become a negative one.
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(most);
  const Index number = huge ? most : value.get<Index>();
  if (!huge && number >= least && number <= most) return number;
  Fail(Error(ErrorCode::kOutOfBounds,
             absl::StrCat(Path(field), " is ", value.dump(), ": it must be from ", least, " to ", most)));
  return least;
}

Index Arch::Number(const std::string& field, Index most) {
  const Json* value = Find(field, true);
  return value == nullptr ? 1 : Read(field, *value, 1, most);
}

Index Arch::NumberOr(const std::string& field, Index fallback, Index most) {
  const Json* value = Find(field, false);
  return value == nullptr ? fallback : Read(field, *value, 0, most);
}

bool Arch::FlagOr(const std::string& field, bool fallback) {
  const Json* value = Find(field, false);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Fail(Error(ErrorCode::kMalformed, absl::StrCat(Path(field), " must be true or false")));
  return fallback;
}

bool Arch::Flag(const std::string& field) { return Find(field, true) != nullptr && FlagOr(field, false); }

std::string Arch::TextOr(const std::string& field, const std::string& fallback) {
  const Json* value = Find(field, false);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  Fail(Error(ErrorCode::kMalformed, absl::StrCat(Path(field), " must be text")));
  return fallback;
}

std::string Arch::Text(const std::string& field) { return Find(field, true) == nullptr ? "" : TextOr(field, ""); }

std::vector<Index> Arch::Ascending(const std::string& field, Index first, Index end) {
  const Json* list = Find(field, true);
  if (list == nullptr) return {};
  if (!list->is_array()) {
    Fail(Error(ErrorCode::kMalformed, absl::StrCat(Path(field), " must be a list")));
    return {};
  }
  std::vector<Index> numbers;
  for (const Json& value : *list) {
    const std::string element = absl::StrCat(field, "[", numbers.size(), "]");
    const Index least = numbers.empty() ? first : numbers.back() + 1;
    if (least >= end) {
      Fail(Error(ErrorCode::kOutOfBounds,
                 absl::StrCat(Path(element), " is one number too many: they ascend, and end ", "below ", end)));
      return {};
    }
    numbers.push_back(Read(element, value, least, end - 1));
  }
  return numbers;
}

const Json& Arch::Object(const std::string& field) {
  static const Json& none = *new Json(Json::object());
  const Json* value = Find(field, true);
  if (value != nullptr && value->is_object()) return *value;
  if (value != nullptr) Fail(Error(ErrorCode::kMalformed, absl::StrCat(Path(field), " must be an object")));
  return none;
}

void Arch::Require(bool condition, const std::string& field, const std::string& why) {
  if (!condition) Fail(Error(ErrorCode::kInvalidOption, absl::StrCat(Path(field), " must ", why)));
}

absl::Status Arch::Done() const {
  HR_RETURN_IF_ERROR(status_);
  for (const auto& [field, value] : json_.items()) {
    if (read_.contains(field)) continue;
    const std::string known = absl::StrJoin(read_, ", ", [](std::string* out, const auto& f) { *out += f.first; });
    return Error(ErrorCode::kMalformed, absl::StrCat(Path(field), " is no field of this family; known: ", known));
  }
  return absl::OkStatus();
}

}  // namespace headrace
