#include "planner/cluster/json_fields.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {

using Json = nlohmann::json;

JsonFields::JsonFields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    status_ = Error(ErrorCode::kMalformed, absl::StrCat(path_.empty() ? "the document" : path_,
                                                        object.is_null() ? " is null" : "", " must be an object"));
  }
}

void JsonFields::Only(const std::vector<std::string>& known) {
  if (!object_.is_object()) return;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    Fail(name, absl::StrCat("is unknown; known: ", absl::StrJoin(known, ", ")));
  }
}

Index JsonFields::Number(const std::string& name, std::optional<Index> otherwise) {
  if (!Has(name)) {
    if (!otherwise) Fail(name, "is missing: give a number");
    return otherwise.value_or(1);
  }
  const Json& value = object_[name];
  if (value.is_null()) {
    Fail(name, "is null: a size that is not known is never guessed; give a number");
  } else if (!value.is_number_integer()) {
    Fail(name, "must be a whole number");
  } else if (value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
    Fail(name, absl::StrCat("is ", value.dump(), ": give less than 2^31"));
  } else if (value.get<Index>() < 1) {
    Fail(name, absl::StrCat("is ", value.dump(), ": give at least 1"));
  } else {
    return value.get<Index>();
  }
  return 1;
}

std::optional<Index> JsonFields::NumberOrNull(const std::string& name) {
  if (!Has(name) || IsNull(name)) return std::nullopt;
  return Number(name);
}

std::string JsonFields::Text(const std::string& name, bool required) {
  if (!Has(name)) {
    if (required) Fail(name, "is missing: give a text");
    return "";
  }
  if (object_[name].is_string()) return object_[name].get<std::string>();
  Fail(name, IsNull(name) ? "is null: give a text" : "must be a text");
  return "";
}

bool JsonFields::Flag(const std::string& name) {
  if (!Has(name) || IsNull(name)) return false;
  if (object_[name].is_boolean()) return object_[name].get<bool>();
  Fail(name, "must be true or false");
  return false;
}

std::optional<double> JsonFields::Measure(const std::string& name) {
  if (!Has(name) || IsNull(name)) return std::nullopt;
  if (object_[name].is_number()) return object_[name].get<double>();
  Fail(name, "must be a number or null");
  return std::nullopt;
}

const Json& JsonFields::Object(const std::string& name) {
  static const auto* const kNothing = new Json(Json::object());
  if (!Has(name)) {
    Fail(name, "is missing: give an object");
    return *kNothing;
  }
  if (!object_[name].is_object()) {
    Fail(name, "must be an object");
    return *kNothing;
  }
  return object_[name];
}

std::vector<std::pair<std::string, const Json*>> JsonFields::Objects(const std::string& name) {
  if (!Has(name) || !object_[name].is_array()) return {{Path(name), &Object(name)}};
  std::vector<std::pair<std::string, const Json*>> objects;
  for (const Json& entry : object_[name]) {
    objects.emplace_back(absl::StrCat(Path(name), "[", objects.size(), "]"), &entry);
    if (!entry.is_object()) Fail(absl::StrCat(name, "[", objects.size() - 1, "]"), "must be an object");
  }
  if (objects.empty()) Fail(name, "is empty: give at least one object");
  return objects;
}

std::string JsonFields::Path(const std::string& name) const {
  return path_.empty() ? name : absl::StrCat(path_, ".", name);
}

void JsonFields::Fail(const std::string& name, absl::string_view what) {
  if (status_.ok()) status_ = Error(ErrorCode::kMalformed, absl::StrCat(Path(name), " ", what));
}

}  // namespace headrace
