#include "loader/session/merkle.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"
#include "loader/session/session_testing.h"

namespace headrace {
namespace {

using testing::EdgeOf;

std::string Root(int edges, bool reversed = false) {
  std::vector<proto::Edge> list;
  for (int i = 0; i < edges; ++i) list.push_back(EdgeOf(i, i % 2, i + 1, "d" + std::to_string(i)));
  if (reversed) std::reverse(list.begin(), list.end());
  return absl::BytesToHexString(MerkleRoot(list));
}

// By Python: hashlib.sha256(b"\0" + struct.pack("<iii", i, i % 2, i + 1) + b"d%d" % i), and so on up.
TEST(MerkleTest, IsWhatItsDefinitionSays) {
  EXPECT_EQ(Root(0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Root(1), "21eb69d3122a7d2f05401f321fd2eec3de802a163d0d330c87e73fddf05dce3e");
  EXPECT_EQ(Root(2), "1234b9d4af0f381c3d560ec721f3685a6c46d0e24eec25c4fe20f97e13a8adbe");
  EXPECT_EQ(Root(3), "24dd84a5cf549f7fa216cef33d64958b703038d609fd976dc2b7d13e2bf8e869");
  EXPECT_EQ(Root(5), "8b01eb27da40c8f8421b38bd54a96ececc2ee68a13d526f8b13f6750d652008e");
}

TEST(MerkleTest, DoesNotDependOnTheOrder) { EXPECT_EQ(Root(5, true), Root(5)); }

TEST(MerkleTest, ChangesWithEveryEdge) {
  std::vector<proto::Edge> list = {EdgeOf(0, 0, 0), EdgeOf(0, 0, 1), EdgeOf(1, 0, 0)};
  const std::string root = MerkleRoot(list);
  for (proto::Edge& edge : list) {
    edge.set_digest("e");
    EXPECT_NE(MerkleRoot(list), root);
    edge.set_digest("d");
  }
  EXPECT_EQ(MerkleRoot(list), root);
}

}  // namespace
}  // namespace headrace
