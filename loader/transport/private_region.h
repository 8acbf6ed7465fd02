#ifndef HEADRACE_LOADER_TRANSPORT_PRIVATE_REGION_H_
#define HEADRACE_LOADER_TRANSPORT_PRIVATE_REGION_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "loader/transport/anonymous_memory.h"
#include "loader/transport/transport.h"
#include "planner/status.h"

namespace headrace {

// A region of a transport that does not map.
class PrivateRegion : public Region {
 public:
  // The errors of AnonymousMemory::Allocate.
  static absl::StatusOr<std::unique_ptr<Region>> Allocate(int64_t bytes) {
    HR_ASSIGN_OR_RETURN(std::unique_ptr<AnonymousMemory> memory, AnonymousMemory::Allocate(bytes));
    return std::unique_ptr<Region>(new PrivateRegion(std::move(memory)));
  }
  absl::Span<std::byte> bytes() override { return memory_->bytes(); }
  std::string key() const override { return ""; }

 private:
  explicit PrivateRegion(std::unique_ptr<AnonymousMemory> memory) : memory_(std::move(memory)) {}
  const std::unique_ptr<AnonymousMemory> memory_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_PRIVATE_REGION_H_
