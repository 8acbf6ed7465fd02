#ifndef HEADRACE_PLANNER_MODELS_ARCH_H_
#define HEADRACE_PLANNER_MODELS_ARCH_H_

// Reads the numbers of a model record, which come from users: each is checked, and an error names its field.
//
// The first error is kept and readers return neutral values after it (1, false, nothing), so that a family's code is a
// straight line; the caller asks Done at the end. Not thread-safe.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/manifest.h"

namespace headrace {

// Text that must be one JSON object.
//   malformed  not JSON, a key that is there twice, or not an object; `what` names the text
absl::StatusOr<nlohmann::json> ParseJsonObject(const std::string& what, absl::string_view text);

class Arch {
 public:
  // No number of a record is above this: products of a few of them fit 64 bits.
  static constexpr Index kMaxNumber = Index{1} << 20;
  // Of lists and of what units list one by one.
  static constexpr Index kMaxLayers = 4096;

  // `path` names the object in errors: "arch"; empty for the outermost. `json` must outlive this.
  Arch(std::string path, const nlohmann::json& json);

  // A whole number in [1, most].
  Index Number(const std::string& field, Index most = kMaxNumber);
  // The same from 0 on; `fallback` where the record has no such field.
  Index NumberOr(const std::string& field, Index fallback, Index most = kMaxNumber);
  bool FlagOr(const std::string& field, bool fallback);
  bool Flag(const std::string& field);
  std::string Text(const std::string& field);
  std::string TextOr(const std::string& field, const std::string& fallback);
  // Whole numbers in [first, end), each above the one before.
  std::vector<Index> Ascending(const std::string& field, Index first, Index end);
  bool Has(const std::string& field) const { return json_.is_object() && json_.contains(field); }
  // An object, to be read by an Arch of its own, whose Done goes to Adopt. Empty where there is an error.
  const nlohmann::json& Object(const std::string& field);
  void Adopt(const absl::Status& status);

  // The field may be there, and is for others to read.
  void Ignore(const std::string& field) { read_[field] = true; }

  // An error about `field` unless `condition` holds; `why` says what it must be.
  void Require(bool condition, const std::string& field, const std::string& why);

  // The first error:
  //   malformed      a field is missing, of another type, or not one that the family has (nobody read it)
  //   out_of_bounds  a number is too small or too large
  //   invalid_option what Require refused
  absl::Status Done() const;

 private:
  const nlohmann::json* Find(const std::string& field, bool required);
  Index Read(const std::string& field, const nlohmann::json& value, Index least, Index most);
  void Fail(absl::Status status);
  std::string Path(const std::string& field) const;

  const std::string path_;
  const nlohmann::json& json_;
  std::map<std::string, bool> read_;
  absl::Status status_;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MODELS_ARCH_H_
