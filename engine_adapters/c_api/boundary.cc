#include "engine_adapters/c_api/boundary.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

absl::string_view KindOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return "input";
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return "peer";
    case absl::StatusCode::kFailedPrecondition:
      return "state";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline";
    case absl::StatusCode::kPermissionDenied:
      return "credentials";
    case absl::StatusCode::kResourceExhausted:
      return "resource";
    case absl::StatusCode::kDataLoss:
      return "data_loss";
    default:
      return "internal";
  }
}

Json OrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

Json ErrorJson(const absl::Status& status) {
  if (status.ok()) return Json();
  const ErrorSubject subject = SubjectOf(status);
  return {{"code", std::string(CodeOf(status))},
          {"kind", std::string(KindOf(status))},
          {"message", std::string(status.message())},
          {"tensor", OrNull(subject.tensor)},
          {"buffer", OrNull(subject.buffer)},
          {"rank", subject.rank ? Json(*subject.rank) : Json()},
          {"peer", OrNull(subject.peer)}};
}

absl::Status ErrorFromJson(absl::string_view text, absl::Status* error) {
  const Json j = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  auto is = [&](const char* key, bool (Json::*type)() const noexcept) { return j.contains(key) && (j[key].*type)(); };
  if (!j.is_object() || !is("code", &Json::is_string) || !is("message", &Json::is_string)) {
    return Error(ErrorCode::kInvalidOption, "the error is not an object with the texts \"code\" and \"message\"");
  }
  auto text_of = [&](const char* key) { return is(key, &Json::is_string) ? j[key].get<std::string>() : ""; };
  ErrorSubject subject{text_of("tensor"), text_of("buffer"), {}, text_of("peer")};
  if (is("rank", &Json::is_number_integer)) subject.rank = j["rank"].get<int64_t>();
  *error = About(ErrorFromName(text_of("code"), text_of("message")), subject);
  return absl::OkStatus();
}

char* NewText(absl::string_view text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

char* NewText(const Json& document) {
  return NewText(absl::string_view(document.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

char* Guard(absl::FunctionRef<absl::Status()> body) noexcept {
  absl::Status status;
  try {
    status = body();
  } catch (const std::bad_alloc&) {
    status = Error(ErrorCode::kOutOfMemory, "there is no memory left in this process");
  } catch (const std::exception& e) {
    status = Error(ErrorCode::kInternal, absl::StrCat("unexpected: ", e.what()));
  } catch (...) {
    status = Error(ErrorCode::kInternal, "unexpected exception");
  }
  return status.ok() ? nullptr : NewText(ErrorJson(status));
}

}  // namespace headrace
