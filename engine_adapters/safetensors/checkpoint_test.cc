#include "engine_adapters/safetensors/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine_adapters/safetensors/testing.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FileOf;
using ::testing::HasSubstr;
using testing::NewDirectory;
using testing::WriteFile;

constexpr char kSingle[] = "/model.safetensors";
constexpr char kIndex[] = "/model.safetensors.index.json";

std::string ErrorOf(const std::string& dir) {
  const auto checkpoint = Checkpoint::Open(dir);
  if (checkpoint.ok()) return "opened";
  EXPECT_EQ(CodeOf(checkpoint.status()), "io");
  return std::string(checkpoint.status().message());
}

std::vector<std::string> NamesOf(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) names.push_back(tensor.spec.name);
  return names;
}

int ValueOf(const CheckpointTensor& tensor, size_t byte) { return std::to_integer<int>(tensor.bytes[byte]); }

// Shard 1 holds b and d, shard 2 holds a and c.
class Sharded : public ::testing::Test {
 protected:
  Sharded() {
    WriteFile(dir_ + "/1.safetensors", FileOf({{"d", "BF16", {5}}, {"b", "F32", {2, 2}}}));
    WriteFile(dir_ + "/2.safetensors", FileOf({{"c", "BF16", {3}}, {"a", "BF16", {1}}}));
  }

  void WriteIndex(const std::string& weight_map) {
    WriteFile(dir_ + kIndex, "{\"metadata\":{\"total_size\":34},\"weight_map\":" + weight_map + "}");
  }

  const std::string dir_ = NewDirectory();
};

TEST(Checkpoint, OpensASingleFile) {
  const std::string dir = NewDirectory();
  WriteFile(dir + kSingle, FileOf({{"z", "F32", {2}}, {"y", "BF16", {2, 3}}}));
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->dir(), dir);
  EXPECT_THAT(NamesOf(**checkpoint), ElementsAre("y", "z"));
  const CheckpointTensor* y = (*checkpoint)->Find("y");
  ASSERT_NE(y, nullptr);
  EXPECT_THAT(y->spec.shape, ElementsAre(2, 3));
  ASSERT_EQ(y->bytes.size(), 12u);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(ValueOf(*y, i), 8 + static_cast<int>(i));
  for (const char* name : {"", "x", "yy", "zz"}) EXPECT_EQ((*checkpoint)->Find(name), nullptr) << name;
}

TEST(Checkpoint, FollowsLinks) {
  const std::string dir = NewDirectory();
  WriteFile(dir + "/blob", FileOf({{"z", "F32", {2}}}));
  ASSERT_EQ(symlink("blob", (dir + kSingle).c_str()), 0);
  EXPECT_TRUE(Checkpoint::Open(dir).ok());
}

TEST(Checkpoint, RefusesWhatIsNoCheckpoint) {
  const std::string dir = NewDirectory();
  EXPECT_THAT(ErrorOf(dir), AllOf(HasSubstr(dir), HasSubstr("holds neither model.safetensors nor")));
  EXPECT_THAT(ErrorOf(dir + "/absent"), HasSubstr("holds neither"));
  WriteFile(dir + kSingle, "");
  EXPECT_THAT(ErrorOf(dir), AllOf(HasSubstr(dir + kSingle), HasSubstr("truncated"), HasSubstr("the file has 0")));
  WriteFile(dir + kIndex, "{}");
  EXPECT_THAT(ErrorOf(dir), HasSubstr("holds both model.safetensors and model.safetensors.index.json"));
}

TEST(Checkpoint, RefusesWhatIsNoFile) {
  const std::string directory = NewDirectory();
  ASSERT_EQ(mkdir((directory + kSingle).c_str(), 0700), 0);
  EXPECT_THAT(ErrorOf(directory), HasSubstr("is no regular file"));
  const std::string pipe = NewDirectory();
  ASSERT_EQ(mkfifo((pipe + kSingle).c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf(pipe), HasSubstr("is no regular file"));
}

TEST(Checkpoint, RefusesTruncationAtEveryLength) {
  const std::string dir = NewDirectory();
  const std::string file = FileOf({{"a", "F32", {2}}, {"b", "BF16", {3, 2}}});
  for (size_t size = 0; size < file.size(); ++size) {
    WriteFile(dir + kSingle, file.substr(0, size));
    EXPECT_THAT(ErrorOf(dir), HasSubstr("truncated: ")) << size;
  }
}

TEST_F(Sharded, OpensAllShards) {
  WriteIndex(R"({"a":"2.safetensors","b":"1.safetensors","c":"2.safetensors","d":"1.safetensors"})");
  const auto checkpoint = Checkpoint::Open(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(NamesOf(**checkpoint), ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(ValueOf(*(*checkpoint)->Find("a"), 0), 6);
  EXPECT_EQ(ValueOf(*(*checkpoint)->Find("b"), 15), 25);
  EXPECT_EQ(ValueOf(*(*checkpoint)->Find("c"), 5), 5);
  EXPECT_EQ(ValueOf(*(*checkpoint)->Find("d"), 9), 9);
}

TEST_F(Sharded, RefusesAnIndexThatIsNone) {
  for (const char* index : {"", "[]", "{", "{}", R"({"weight_map":[]})", R"({"weight_map":{},"weight_map":{}})"}) {
    WriteFile(dir_ + kIndex, index);
    EXPECT_THAT(ErrorOf(dir_), HasSubstr(dir_ + kIndex)) << index;
  }
  for (const char* shard : {"1", "null", "\"\"", "\".\"", "\"..\"", "\"../x\"", "\"/etc/passwd\"", R"("1\u0000")"}) {
    WriteIndex(absl::StrCat("{\"a\":", shard, "}"));
    EXPECT_THAT(ErrorOf(dir_), HasSubstr("tensor \"a\" is not mapped to a file name in this directory")) << shard;
  }
}

TEST_F(Sharded, RefusesShardsThatDifferFromTheIndex) {
  WriteIndex(R"({"a":"2.safetensors","b":"1.safetensors","c":"2.safetensors"})");
  EXPECT_THAT(ErrorOf(dir_), AllOf(HasSubstr("1.safetensors: tensor \"d\" is not listed in "), HasSubstr(kIndex)));
  WriteIndex(R"({"a":"2.safetensors","b":"1.safetensors","c":"2.safetensors","d":"2.safetensors"})");
  EXPECT_THAT(ErrorOf(dir_), AllOf(HasSubstr("1.safetensors: holds tensor \"d\""), HasSubstr("\"2.safetensors\"")));
  WriteIndex(
      R"({"a":"2.safetensors","b":"1.safetensors","c":"2.safetensors","d":"1.safetensors","e":"2.safetensors"})");
  EXPECT_THAT(ErrorOf(dir_), HasSubstr("2.safetensors: lacks tensor \"e\""));
  WriteIndex(R"({"a":"2.safetensors","b":"1.safetensors","c":"3.safetensors","d":"1.safetensors"})");
  EXPECT_THAT(ErrorOf(dir_), HasSubstr("2.safetensors: holds tensor \"c\""));
  WriteIndex(R"({"b":"1.safetensors","c":"3.safetensors","d":"1.safetensors"})");
  EXPECT_THAT(ErrorOf(dir_), HasSubstr("3.safetensors: cannot be opened: No such file"));
}

TEST_F(Sharded, RefusesATensorInTwoShards) {
  WriteFile(dir_ + "/2.safetensors", FileOf({{"c", "BF16", {3}}, {"a", "BF16", {1}}, {"b", "F32", {2, 2}}}));
  WriteIndex(R"({"a":"2.safetensors","b":"1.safetensors","c":"2.safetensors","d":"1.safetensors"})");
  EXPECT_THAT(ErrorOf(dir_), HasSubstr("2.safetensors: holds tensor \"b\", which"));
  WriteIndex(R"({"a":"2.safetensors","b":"1.safetensors","b":"2.safetensors"})");
  EXPECT_THAT(ErrorOf(dir_), HasSubstr("the key \"b\" stands twice"));
}

}  // namespace
}  // namespace headrace
