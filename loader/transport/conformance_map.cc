// Conformance: regions and mappings.

#include "absl/time/clock.h"
#include "loader/transport/conformance_internal.h"

namespace headrace::conformance {
namespace {

// A region of `owner` filled with a pattern.
std::unique_ptr<Region> Filled(Transport& owner, const std::vector<std::byte>& pattern) {
  auto region = owner.AllocateRegion(pattern.size());
  EXPECT_TRUE(region.ok()) << region.status();
  if (!region.ok()) return nullptr;
  Write(pattern, (*region)->bytes());
  return *std::move(region);
}

bool Holds(const Mapping& mapping, const std::vector<std::byte>& pattern) {
  return Contents(mapping.bytes()) == pattern;
}

void MappingsReadWhatTheOwnerWrites(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  for (size_t size : {1u, 2u, 4095u, 4096u, 4097u, 65536u, 3u << 20, (8u << 20) + 1}) {
    const std::vector<std::byte> first = Pattern(size, TestSeed() + size);
    std::unique_ptr<Region> region = Filled(*pair.b, first);
    ASSERT_NE(region, nullptr);
    auto mapping = pair.a->Map(pair.a_to_b, region->key(), Soon());
    ASSERT_TRUE(mapping.ok()) << mapping.status();
    EXPECT_TRUE(Holds(**mapping, first)) << size;
    const std::vector<std::byte> second = Pattern(size, TestSeed() + size + 1);
    Write(second, region->bytes());
    EXPECT_TRUE(Holds(**mapping, second)) << size;
  }
}

void ManyRegionsAreToldApart(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  std::vector<std::unique_ptr<Region>> regions;
  for (size_t i = 0; i < 40; ++i) regions.push_back(Filled(*pair.b, Pattern(100 + i, i)));
  for (size_t i = 40; i-- > 0;) {
    auto mapping = pair.a->Map(pair.a_to_b, regions[i]->key(), Soon());
    ASSERT_TRUE(mapping.ok()) << mapping.status();
    EXPECT_TRUE(Holds(**mapping, Pattern(100 + i, i))) << i;
  }
}

void WrongKeysAreRefused(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  std::unique_ptr<Region> region = Filled(*pair.b, Pattern(100, 1));
  const std::string key = region->key();
  std::string flipped = key;
  flipped.back() ^= 1;
  for (const std::string& wrong :
       {std::string(), flipped, key.substr(1), key + "x", std::string(key.size(), '\0'), std::string(100000, 'k')}) {
    EXPECT_THAT(pair.a->Map(pair.a_to_b, wrong, Soon()).status(), HasErrorCode(ErrorCode::kTransport));
  }
  EXPECT_TRUE(pair.a->Map(pair.a_to_b, key, Soon()).ok());
}

void KeysOfOtherEndpointsAreRefused(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  auto stranger = new_endpoint();
  std::unique_ptr<Region> foreign = Filled(*stranger, Pattern(100, 1));
  std::unique_ptr<Region> own = Filled(*pair.a, Pattern(100, 2));
  EXPECT_THAT(pair.a->Map(pair.a_to_b, foreign->key(), Soon()).status(), HasErrorCode(ErrorCode::kTransport));
  EXPECT_THAT(pair.a->Map(pair.a_to_b, own->key(), Soon()).status(), HasErrorCode(ErrorCode::kTransport));
}

void KeysEndWithTheirRegion(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  std::unique_ptr<Region> region = Filled(*pair.b, Pattern(100, 1));
  const std::string key = region->key();
  auto mapping = pair.a->Map(pair.a_to_b, key, Soon());
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  region.reset();
  EXPECT_TRUE(Holds(**mapping, Pattern(100, 1)));
  EXPECT_THAT(pair.a->Map(pair.a_to_b, key, Soon()).status(), HasErrorCode(ErrorCode::kTransport));
}

void MappingsOutliveBothEnds(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  const std::vector<std::byte> pattern = Pattern(2 << 20, TestSeed());
  std::unique_ptr<Region> region = Filled(*pair.b, pattern);
  auto mapping = pair.a->Map(pair.a_to_b, region->key(), Soon());
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  pair.a->Disconnect(pair.a_to_b);
  EXPECT_TRUE(Holds(**mapping, pattern));
  pair.b.reset();
  pair.a.reset();
  EXPECT_TRUE(Holds(**mapping, pattern));
  region.reset();
  EXPECT_TRUE(Holds(**mapping, pattern));
}

void DeadOwnersAreLost(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  std::unique_ptr<Region> region = Filled(*pair.b, Pattern(100, 1));
  const std::string address = pair.b->address();
  pair.b.reset();
  EXPECT_THAT(pair.a->Map(pair.a_to_b, region->key(), Soon()).status(), HasErrorCode(ErrorCode::kPeerLost));
  pair.a->Disconnect(pair.a_to_b);
  EXPECT_THAT(pair.a->Connect(address, Soon()).status(), HasErrorCode(ErrorCode::kPeerLost));
}

void DisconnectedPeersAreNotMapped(const NewEndpoint& new_endpoint) {
  Pair pair(new_endpoint);
  std::unique_ptr<Region> region = Filled(*pair.b, Pattern(100, 1));
  pair.a->Disconnect(pair.a_to_b);
  EXPECT_THAT(pair.a->Map(pair.a_to_b, region->key(), Soon()).status(), HasErrorCode(ErrorCode::kTransport));
  auto again = pair.a->Connect(pair.b->address(), Soon());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(pair.a->Map(*again, region->key(), Soon()).ok());
}

void ManyPeersMapOneRegion(const NewEndpoint& new_endpoint) {
  auto owner = new_endpoint();
  const std::vector<std::byte> pattern = Pattern(70000, 3);
  std::unique_ptr<Region> region = Filled(*owner, pattern);
  std::vector<std::unique_ptr<Transport>> readers;
  std::vector<std::unique_ptr<Mapping>> mappings;
  for (int i = 0; i < 20; ++i) {
    readers.push_back(new_endpoint());
    auto peer = readers.back()->Connect(owner->address(), Soon());
    ASSERT_TRUE(peer.ok()) << peer.status();
    auto mapping = readers.back()->Map(*peer, region->key(), Soon());
    ASSERT_TRUE(mapping.ok()) << mapping.status();
    mappings.push_back(*std::move(mapping));
  }
  for (const auto& mapping : mappings) EXPECT_TRUE(Holds(*mapping, pattern));
}

}  // namespace

std::vector<Case> MapCases() {
#define HEADRACE_CASE(function) \
  Case { #function, Needs::kMap, function }
  return {HEADRACE_CASE(MappingsReadWhatTheOwnerWrites),
          HEADRACE_CASE(ManyRegionsAreToldApart),
          HEADRACE_CASE(WrongKeysAreRefused),
          HEADRACE_CASE(KeysOfOtherEndpointsAreRefused),
          HEADRACE_CASE(KeysEndWithTheirRegion),
          HEADRACE_CASE(MappingsOutliveBothEnds),
          HEADRACE_CASE(DeadOwnersAreLost),
          HEADRACE_CASE(DisconnectedPeersAreNotMapped),
          HEADRACE_CASE(ManyPeersMapOneRegion)};
#undef HEADRACE_CASE
}

}  // namespace headrace::conformance
