// The communicators of this process, by handle, and what ids made them.

#include <map>
#include <mutex>
#include <set>

#include "loader/testing/nccl_checker/communicator.h"
#include "loader/testing/nccl_checker/memory.h"
#include "loader/testing/nccl_checker/rendezvous.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/text.h"

namespace headrace::nccl_checker {
namespace {

constexpr uintptr_t kFirstHandle = 0x5C00000000000000;
constexpr unsigned kConfigMagic = 0xcafebeef;
// What a kernel may take where the configuration does not say: nccl.h's ncclConfig_t maxCTAs, NCCL_MAX_CTAS.
constexpr int kMostCtas = 64;

// What this process made by an id.
struct Id {
  std::set<int> ranks;
  std::shared_ptr<std::atomic<bool>> complete = std::make_shared<std::atomic<bool>>(false);
};

struct Table {
  std::mutex mutex;
  std::map<uint64_t, CommRef> communicators;  // by number
  uint64_t last_number = 0;
  std::map<std::string, Id> ids;
};

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

nccl::Comm HandleOf(uint64_t number) { return reinterpret_cast<nccl::Comm>(kFirstHandle + 16 * number); }
// 0: no handle.
uint64_t NumberOf(nccl::Comm handle) {
  const uintptr_t value = reinterpret_cast<uintptr_t>(handle);
  return value > kFirstHandle && value % 16 == 0 ? (value - kFirstHandle) / 16 : 0;
}

}  // namespace

nccl::Result CreateCommunicator(nccl::Comm* handle, int ranks, const nccl::UniqueId& id, int rank,
                                const nccl::Config* config, CommRef* made) {
  constexpr const char* kCall = "ncclCommInitRankConfig";
  if (handle == nullptr) return Violation(Rule::kCommHandle, Text(kCall, " with no place for the communicator"));
  *handle = nullptr;
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks) {
    return Violation(Rule::kRankRange, Text(kCall, " with rank ", rank, " of ", ranks));
  }
  bool blocking = true;
  int ctas = kMostCtas;
  if (config != nullptr) {
    if (config->magic != kConfigMagic || config->size < sizeof(nccl::Config) ||
        config->version < nccl::kConfigVersion) {
      return Violation(Rule::kCommConfig, Text(kCall, " with size ", config->size, ", magic ", config->magic,
                                               ", version ", config->version));
    }
    if ((config->blocking != INT_MIN && config->blocking != 0 && config->blocking != 1) ||
        (config->max_ctas != INT_MIN && (config->max_ctas < 1 || config->max_ctas > kMostCtas)) ||
        (config->min_ctas != INT_MIN && (config->min_ctas < 1 || config->min_ctas > kMostCtas))) {
      return Violation(Rule::kCommConfig, Text(kCall, " with blocking ", config->blocking, ", min_ctas ",
                                               config->min_ctas, ", max_ctas ", config->max_ctas));
    }
    blocking = config->blocking != 0;
    if (config->max_ctas != INT_MIN) ctas = config->max_ctas;
  }
  const std::string name = NameIn(id);
  if (name.empty()) return Violation(Rule::kIdForeign, kCall);
  {
    std::lock_guard lock(table().mutex);
    Id& used = table().ids[name];
    if (*used.complete || !used.ranks.insert(rank).second) {
      return Violation(Rule::kIdReuse, Text(kCall, " as rank ", rank, " with an id by which this process made ",
                                            *used.complete ? "a communicator" : "that rank", " already"));
    }
    const uint64_t number = ++table().last_number;
    *made = std::make_shared<Communicator>(number, rank, ranks, CurrentDevice(), blocking, ctas, used.complete);
    table().communicators[number] = *made;
    *handle = HandleOf(number);
  }
  (*made)->BeginInit(name);
  return blocking ? nccl::kSuccess : nccl::kInProgress;
}

CommRef FindCommunicator(nccl::Comm handle, const char* call, nccl::Result* error) {
  std::lock_guard lock(table().mutex);
  const uint64_t number = NumberOf(handle);
  const auto found = table().communicators.find(number);
  if (found != table().communicators.end()) return found->second;
  *error = number >= 1 && number <= table().last_number
               ? Violation(Rule::kCommAfterFree, Text(call, " with communicator ", number))
               : Violation(Rule::kCommHandle, Text(call, " with ", handle));
  return nullptr;
}

void ForgetCommunicator(nccl::Comm handle) {
  std::lock_guard lock(table().mutex);
  table().communicators.erase(NumberOf(handle));
}

}  // namespace headrace::nccl_checker
