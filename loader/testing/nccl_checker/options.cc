#include "loader/testing/nccl_checker/options.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "loader/testing/nccl_checker/nccl_checker.h"

namespace headrace::nccl_checker {
namespace {

[[noreturn]] void Malformed(const char* name, std::string_view value) {
  std::fprintf(stderr, "NCCL CHECKER: the environment variable %s is malformed: '%.*s'\n", name,
               static_cast<int>(value.size()), value.data());
  std::abort();
}

int64_t Number(const char* name, int64_t absent, int64_t low, int64_t high) {
  const char* text = std::getenv(name);
  if (text == nullptr) return absent;
  int64_t number = 0;
  const char* end = text + std::strlen(text);
  const auto result = std::from_chars(text, end, number);
  if (result.ec != std::errc() || result.ptr != end || number < low || number > high) Malformed(name, text);
  return number;
}

std::string_view Value(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// Each part of a list with commas.
template <typename Function>
void ForEach(std::string_view list, const Function& function) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    function(list.substr(0, comma));
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
}

Options Read() {
  Options o;
  o.devices = Number(kDevicesVariable, o.devices, 1, 64);
  o.device_bytes = Number(kDeviceBytesVariable, o.device_bytes, 1, int64_t{1} << 40);
  o.group_cap = Number(kGroupCapVariable, o.group_cap, 1, 1 << 30);
  o.ring_bytes = Number(kRingBytesVariable, o.ring_bytes, 4096, 1 << 26);
  if ((o.ring_bytes & (o.ring_bytes - 1)) != 0) Malformed(kRingBytesVariable, Value(kRingBytesVariable));
  o.cta_limit = Number(kCtaLimitVariable, o.cta_limit, 1, 1 << 20);
  o.stall = std::chrono::milliseconds(Number(kStallMsVariable, o.stall.count(), 1, 1 << 30));
  o.violations_file = Value(kViolationsFileVariable);
  o.seed = Number(kSeedVariable, 0, 0, INT64_MAX);
  const std::string_view violation = Value(kOnViolationVariable);
  if (violation == "return") {
    o.abort_on_violation = false;
  } else if (violation != "" && violation != "abort") {
    Malformed(kOnViolationVariable, violation);
  }
  const std::string_view loss = Value(kPeerLossVariable);
  if (loss == "error") {
    o.peer_loss = PeerLoss::kError;
  } else if (loss == "silent") {
    o.peer_loss = PeerLoss::kSilent;
  } else if (loss != "") {
    Malformed(kPeerLossVariable, loss);
  }
  ForEach(Value(kFaultsVariable), [&](std::string_view fault) {
    if (fault == "delay") {
      o.delay_fault = true;
    } else if (fault == "short") {
      o.short_fault = true;
    } else if (fault == "init") {
      o.init_fault = true;
    } else if (fault == "async") {
      o.async_fault = true;
    } else {
      Malformed(kFaultsVariable, fault);
    }
  });
  if (const char* types = std::getenv(kHandleTypesVariable); types != nullptr) {
    o.handle_types = cuda::kHandleTypeNone;
    ForEach(types, [&](std::string_view type) {
      if (type == "fd") {
        o.handle_types |= cuda::kHandleTypePosixFd;
      } else if (type == "fabric" || type == "fabric-denied") {
        o.handle_types |= cuda::kHandleTypeFabric;
        o.fabric_denied = type == "fabric-denied";
      } else {
        Malformed(kHandleTypesVariable, type);
      }
    });
  }
  o.multi_rank_gpu = Value(kMultiRankGpuVariable) == "1";
  return o;
}

}  // namespace

const Options& options() {
  static const Options* const instance = new Options(Read());
  return *instance;
}

}  // namespace headrace::nccl_checker
