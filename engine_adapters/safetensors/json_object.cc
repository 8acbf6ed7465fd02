#include "engine_adapters/safetensors/json_object.h"

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 64;

// Reads through a text before a document is made of it, and stops at what the document could not show (a key that
// stands twice) or should not be built at all (absurd nesting).
class Guard : public nlohmann::json_sax<Json> {
 public:
  const std::string& fault() const { return fault_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }

  bool key(string_t& key) override {
    if (open_.back().insert(key).second) return true;
    fault_ = absl::StrCat("the key ", Quoted(key), " stands twice in one object");
    return false;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    fault_ = absl::StrCat("not JSON: ", absl::Utf8SafeCHexEscape(e.what()));
    return false;
  }

 private:
  bool Enter() {
    if (open_.size() == kMaxDepth) {
      fault_ = absl::StrCat("nested more than ", kMaxDepth, " levels deep");
      return false;
    }
    open_.emplace_back();
    return true;
  }

  bool Leave() {
    open_.pop_back();
    return true;
  }

  std::vector<absl::flat_hash_set<std::string>> open_;  // the keys of each open object (none of an array)
  std::string fault_;
};

}  // namespace

absl::StatusOr<Json> ParseJsonObject(absl::string_view text, absl::string_view where) {
  auto error = [&](absl::string_view what) { return Error(ErrorCode::kIo, absl::StrCat(where, ": ", what)); };
  if (text.size() > kMaxJsonBytes) {
    return error(absl::StrCat(text.size(), " bytes of JSON are over the limit of ", kMaxJsonBytes));
  }
  // The parser takes a zero byte for the end of its input, whatever follows.
  if (text.find('\0') != text.npos) return error("not JSON: it holds a zero byte");
  Guard guard;
  if (!Json::sax_parse(text.begin(), text.end(), &guard)) return error(guard.fault());
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return error("not a JSON object");
  return json;
}

std::string Quoted(absl::string_view name) { return absl::StrCat("\"", absl::Utf8SafeCHexEscape(name), "\""); }

}  // namespace headrace
