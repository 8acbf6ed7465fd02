#include "loader/transport/ucx/address.h"

#include "absl/strings/strip.h"
#include "planner/status.h"

namespace headrace::ucx {
namespace {

constexpr absl::string_view kPrefix = "headrace-ucx/1/";

uint64_t Fnv1a(absl::string_view bytes, uint64_t hash) {
  for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001B3;
  return hash;
}

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t TakeLittleEndian(int bytes, absl::string_view* in) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= uint64_t{static_cast<unsigned char>((*in)[i])} << (8 * i);
  in->remove_prefix(bytes);
  return value;
}

// Seeded by the endpoint id, so that the hash covers it too.
uint64_t Sum(uint32_t endpoint_id, absl::string_view worker_address) {
  return Fnv1a(worker_address, 0xCBF29CE484222325 ^ endpoint_id);
}

}  // namespace

std::string FormatAddress(uint32_t endpoint_id, absl::string_view worker_address) {
  std::string address(kPrefix);
  AppendLittleEndian(endpoint_id, 4, &address);
  AppendLittleEndian(Sum(endpoint_id, worker_address), 8, &address);
  address.append(worker_address.data(), worker_address.size());
  return address;
}

absl::Status ParseAddress(absl::string_view address, uint32_t* endpoint_id, std::string* worker_address) {
  if (!absl::ConsumePrefix(&address, kPrefix) || address.size() <= 12) {
    return Error(ErrorCode::kTransport, "connect: not an address of the ucx transport");
  }
  *endpoint_id = static_cast<uint32_t>(TakeLittleEndian(4, &address));
  const uint64_t sum = TakeLittleEndian(8, &address);
  if (Sum(*endpoint_id, address) != sum) return Error(ErrorCode::kTransport, "connect: a damaged ucx address");
  *worker_address = std::string(address);
  return absl::OkStatus();
}

}  // namespace headrace::ucx
