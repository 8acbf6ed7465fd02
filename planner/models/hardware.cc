#include "planner/models/hardware.h"

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr char kHardware[] =
#include "planner/models/hardware_json.inc"
    ;

const std::map<std::string, Hardware>& All() {
  static const auto& all = *[] {
    auto* machines = new std::map<std::string, Hardware>;
    const nlohmann::json json = nlohmann::json::parse(kHardware);
    for (const auto& [name, fields] : json.items()) {
      if (!fields.is_object()) continue;  // "_about"
      (*machines)[name] = {.name = name,
                           .system = fields["system"],
                           .nvlink_bytes_per_second = fields["nvlink"],
                           .nic_bytes_per_second = fields["nic"],
                           .hbm_bytes_per_second = fields["hbm"],
                           .nvlink_domain = fields["nvlink_domain"],
                           .gpus_per_node = fields["gpus_per_node"]};
    }
    return machines;
  }();
  return all;
}

}  // namespace

std::vector<std::string> HardwareNames() {
  std::vector<std::string> names;
  for (const auto& [name, machine] : All()) names.push_back(name);
  return names;
}

absl::StatusOr<Hardware> HardwareNamed(const std::string& name) {
  const auto found = All().find(name);
  if (found != All().end()) return found->second;
  return Error(ErrorCode::kInvalidOption,
               absl::StrCat("there is no hardware \"", name, "\"; known: ", absl::StrJoin(HardwareNames(), ", ")));
}

}  // namespace headrace
