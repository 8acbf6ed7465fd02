#ifndef HEADRACE_PLANNER_CLUSTER_JSON_FIELDS_H_
#define HEADRACE_PLANNER_CLUSTER_JSON_FIELDS_H_

// Reads the fields of a JSON object that comes from a user. The first error is kept, under the field's path
// ("train.tp"), and readers return neutral values, so that a reader is a straight line. All errors are `malformed`.
// The document itself is read by ParseJsonObject (planner/models/arch.h). Not thread-safe.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "planner/manifest.h"

namespace headrace {

class JsonFields {
 public:
  // `object` must outlive this. An empty path: the document itself.
  JsonFields(const nlohmann::json& object, std::string path);

  // Any other field is an error.
  void Only(const std::vector<std::string>& known);

  bool Has(const std::string& name) const { return object_.is_object() && object_.contains(name); }
  bool IsNull(const std::string& name) const { return Has(name) && object_[name].is_null(); }

  // A whole number in [1, 2^31). A missing field is `otherwise`, without which it is required; null is an error.
  Index Number(const std::string& name, std::optional<Index> otherwise = std::nullopt);
  // The same; nullopt where it is missing or null.
  std::optional<Index> NumberOrNull(const std::string& name);
  // Missing is empty, unless it is required.
  std::string Text(const std::string& name, bool required);
  // Missing and null are false.
  bool Flag(const std::string& name);
  // Missing and null are the same.
  std::optional<double> Measure(const std::string& name);
  // An object, which is required.
  const nlohmann::json& Object(const std::string& name);
  // An object or a list of objects, which is required and not empty, with their paths ("gen", or "gen[0]", ..).
  std::vector<std::pair<std::string, const nlohmann::json*>> Objects(const std::string& name);

  void Fail(const std::string& name, absl::string_view what);
  std::string Path(const std::string& name) const;
  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json& object_;
  const std::string path_;
  absl::Status status_;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_JSON_FIELDS_H_
