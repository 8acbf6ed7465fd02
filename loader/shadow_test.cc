#include "loader/shadow.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/side_memory.h"
#include "planner/plan.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using testing::SideMemory;

TEST(ShadowTest, ACommitWritesTensorsAndZeroFillsAndNothingElse) {
  for (int seed = 0; seed < testing::Share(1500); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Manifest m = RandomManifest(random);
    const auto plan = BuildPlan(m);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::set<int64_t> ranks;
    for (const Buffer& b : m.destination) ranks.insert(b.rank);
    for (int64_t rank : ranks) {
      SideMemory live(m.destination), wanted(m.destination);
      std::map<int, std::byte*> buffers, unserved;
      for (size_t i = 0; i < m.destination.size(); ++i) {
        const Buffer& b = m.destination[i];
        if (b.rank == rank && !b.alias_of && (i + seed) % 3 == 0) unserved[static_cast<int>(i)] = live.First(b);
      }
      const auto shadow = ShadowMemory::Allocate(m, rank, unserved);
      ASSERT_TRUE(shadow.ok()) << shadow.status();
      Index tensor_bits = 0;
      for (size_t i = 0; i < m.destination.size(); ++i) {
        const Buffer& b = m.destination[i];
        if (b.rank != rank || b.alias_of) continue;
        std::byte* const to = (*shadow)->buffers().at(static_cast<int>(i));
        buffers[static_cast<int>(i)] = live.First(b);
        for (const Piece& p : b.pieces) {
          testing::VisitPiece(m, b, p, [&](Index element, Index place) {
            const int bits = DtypeBits(b.dtype);
            const uint64_t value = testing::ValueBits(1, static_cast<int>(i), place, bits);
            // A shadow of its own may hold anything outside of the tensors' elements.
            if (element >= 0 || to != live.First(b)) testing::SetBits(to, place, bits, value);
            if (element >= 0) tensor_bits += bits;
            if (element >= 0) testing::SetBits(wanted.First(b), place, bits, value);
            if (p.kind == PieceKind::kZero) testing::SetBits(wanted.First(b), place, bits, 0);
          });
        }
      }
      const CommitBoxes commit(m, *plan, rank);
      EXPECT_EQ(commit.copied_bytes(), tensor_bits / 8);
      commit.CopyAndFill((*shadow)->buffers(), buffers);
      ASSERT_EQ(live.Difference(wanted), "");
      // The fills alone: what the engine scribbled into them is cleared again.
      for (const auto& [index, first] : buffers) {
        const Buffer& b = m.destination[index];
        for (const Piece& p : b.pieces) {
          if (p.kind != PieceKind::kZero) continue;
          testing::VisitPiece(m, b, p,
                              [&](Index, Index place) { testing::SetBits(first, place, DtypeBits(b.dtype), 1); });
        }
      }
      commit.Fill(buffers);
      ASSERT_EQ(live.Difference(wanted), "");
    }
  }
}

TEST(ShadowTest, ARankWithoutBuffersNeedsNothing) {
  const auto shadow = ShadowMemory::Allocate(WholeManifest({{"t", {4}, Dtype::kBF16}}), 5, {});
  ASSERT_TRUE(shadow.ok()) << shadow.status();
  EXPECT_EQ((*shadow)->bytes(), 0);
}

TEST(ShadowTest, MoreThanTheMachineHasIsATypedError) {
  const auto shadow = ShadowMemory::Allocate(WholeManifest({{"t", {Index{1} << 44}, Dtype::kBF16}}), 0, {});
  ASSERT_TRUE(HasCode(shadow.status(), ErrorCode::kOutOfMemory)) << shadow.status();
  EXPECT_THAT(std::string(shadow.status().message()), HasSubstr("35184372088832 bytes"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve terabytes of address space
TEST(ShadowTest, AnAddressSpaceLimitIsATypedError) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{256 << 20, 256 << 20};
    setrlimit(RLIMIT_AS, &limit);
    const auto shadow = ShadowMemory::Allocate(WholeManifest({{"t", {1 << 29}, Dtype::kU8}}), 0, {});
    const bool typed = HasCode(shadow.status(), ErrorCode::kOutOfMemory) &&
                       shadow.status().message().find("536870912 bytes") != absl::string_view::npos;
    _exit(typed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

}  // namespace
}  // namespace headrace
