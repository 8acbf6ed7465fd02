#include "engine_adapters/safetensors/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine_adapters/safetensors/testing.h"
#include "planner/layout/case_share.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using testing::FileOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LengthOf;

// Reads from memory that ends where the file ends, so that the address sanitizer sees a read beyond it.
class Read {
 public:
  explicit Read(const std::string& file)
      : size_(file.size()), memory_(std::make_unique<std::byte[]>(size_)), result_(Parse(file)) {}

  absl::StatusOr<std::vector<CheckpointTensor>>& operator*() { return result_; }
  absl::StatusOr<std::vector<CheckpointTensor>>* operator->() { return &result_; }

  // The names grow; the spans lie in the file, as long as their shapes say, and together fit into it.
  void ExpectSound() {
    size_t total = 0;
    std::string previous;
    for (const CheckpointTensor& tensor : *result_) {
      if (&tensor != &result_->front()) {
        EXPECT_LT(previous, tensor.spec.name);
      }
      previous = tensor.spec.name;
      total += tensor.bytes.size();
      if (tensor.bytes.empty()) continue;
      ASSERT_GE(tensor.bytes.data(), memory_.get() + 8);
      ASSERT_LE(tensor.bytes.data() + tensor.bytes.size(), memory_.get() + size_);
      __int128 bits = DtypeBits(tensor.spec.dtype);
      for (const Index extent : tensor.spec.shape) bits *= extent;
      ASSERT_EQ(bits, static_cast<__int128>(tensor.bytes.size()) * 8);
    }
    EXPECT_LE(total + 8, size_);
  }

 private:
  absl::StatusOr<std::vector<CheckpointTensor>> Parse(const std::string& file) {
    std::transform(file.begin(), file.end(), memory_.get(), [](char c) { return static_cast<std::byte>(c); });
    return ReadSafetensors({memory_.get(), size_}, "f");
  }

  const size_t size_;
  const std::unique_ptr<std::byte[]> memory_;
  absl::StatusOr<std::vector<CheckpointTensor>> result_;
};

std::string BytesOf(const CheckpointTensor& tensor) {
  return std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
}

std::string ErrorOf(const std::string& file) {
  Read read(file);
  if (read->ok()) return "opened";
  EXPECT_EQ(CodeOf(read->status()), "io");
  EXPECT_THAT(read->status().message(), HasSubstr("f: "));
  return std::string(read->status().message());
}

TEST(Safetensors, ReadsTensorsInTheirPlaces) {
  Read read(FileOf(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
                   R"("a":{"data_offsets":[8,12],"shape":[],"dtype":"F32"},)"
                   R"("none":{"dtype":"I64","shape":[3,0],"data_offsets":[8,8]},)"
                   R"("c":{"dtype":"F4","shape":[2,3],"data_offsets":[12,15]},)"
                   R"("d":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[15,18]}}   )",
                   "bbbbbbbbaaaacccddd"));
  ASSERT_TRUE(read->ok()) << read->status();
  std::vector<CheckpointTensor>& tensors = **read;
  ASSERT_EQ(tensors.size(), 5u);
  EXPECT_EQ(tensors[0].spec.name, "a");
  EXPECT_THAT(tensors[0].spec.shape, IsEmpty());
  EXPECT_EQ(tensors[0].spec.dtype, Dtype::kF32);
  EXPECT_EQ(BytesOf(tensors[0]), "aaaa");
  EXPECT_EQ(tensors[1].spec.name, "b");
  EXPECT_THAT(tensors[1].spec.shape, ElementsAre(2, 2));
  EXPECT_EQ(BytesOf(tensors[1]), "bbbbbbbb");
  EXPECT_EQ(BytesOf(tensors[2]), "ccc");
  EXPECT_EQ(BytesOf(tensors[3]), "ddd");
  EXPECT_EQ(tensors[4].spec.name, "none");
  EXPECT_EQ(BytesOf(tensors[4]), "");
  read.ExpectSound();
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  EXPECT_TRUE(Read(FileOf("{}", ""))->ok());
  EXPECT_THAT(ErrorOf(FileOf("{}", "x")), HasSubstr("header says 10 bytes, the file has 11: 1 bytes at the end"));
}

TEST(Safetensors, RefusesTruncation) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("truncated: the header's length takes 8 bytes, the file has 0"));
  EXPECT_THAT(ErrorOf("1234567"), HasSubstr("the file has 7"));
  const std::string file = FileOf({{"a", "F32", {2}}, {"b", "BF16", {3, 2}}});
  ASSERT_TRUE(Read(file)->ok());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THAT(ErrorOf(file.substr(0, size)), HasSubstr("truncated: ")) << size;
  }
  EXPECT_THAT(ErrorOf(file.substr(0, file.size() - 1)),
              HasSubstr(absl::StrCat("truncated: header says ", file.size(), " bytes, the file has ", file.size() - 1,
                                     "; the first tensor that is cut is \"b\"")));
  EXPECT_THAT(ErrorOf(file + "x"), HasSubstr("1 bytes at the end belong to no tensor"));
}

TEST(Safetensors, RefusesAbsurdHeaderLengths) {
  for (const uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0},
                                ~uint64_t{0} - 7, ~uint64_t{0} - 8}) {
    EXPECT_THAT(ErrorOf(LengthOf(length) + "{}"), HasSubstr("the format allows 100000000")) << length;
  }
  EXPECT_THAT(ErrorOf(LengthOf(100'000'000) + "{}"), HasSubstr("truncated: the header ends at byte 100000008"));
  EXPECT_THAT(ErrorOf(LengthOf(0)), HasSubstr("does not start with '{'"));
}

TEST(Safetensors, RefusesHeadersThatAreNoJsonObject) {
  EXPECT_THAT(ErrorOf(FileOf("[]", "")), HasSubstr("does not start with '{'"));
  EXPECT_THAT(ErrorOf(FileOf(" {}", "")), HasSubstr("does not start with '{'"));
  EXPECT_THAT(ErrorOf(FileOf("{", "")), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(FileOf("{}x", "")), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(FileOf(std::string("{}\0\0", 4), "")), HasSubstr("zero byte"));
  EXPECT_THAT(ErrorOf(FileOf("{\"\xff\":1}", "")), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(FileOf("{\"a\":" + std::string(1'000'000, '['), "")), HasSubstr("nested more than 64 levels"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(ErrorOf(FileOf(objects, "")), HasSubstr("nested more than 64 levels"));
}

TEST(Safetensors, RefusesBadEntriesAndNamesTheTensor) {
  struct Case {
    std::string entry;  // of tensor t, with 8 bytes of data
    std::string message;
  };
  const std::string fields = "must have exactly the fields dtype, shape and data_offsets";
  const std::string bad_shape = "its shape is no list of numbers";
  const std::string bad_offsets = "its data_offsets are not two numbers";
  auto shaped = [](const std::string& dtype, const std::string& shape, const std::string& offsets = "[0,8]") {
    return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  const Case cases[] = {
      {"1", fields},
      {"[]", fields},
      {"{}", fields},
      {R"({"dtype":"F32","shape":[2]})", fields},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]})", fields},
      {R"({"dtype":"F32","shape":[2],"offsets":[0,8]})", fields},
      {R"({"dtype":4,"shape":[2],"data_offsets":[0,8]})", "its dtype is no string"},
      {shaped("f32", "[2]"), "unknown dtype \"f32\""},
      {shaped("F32", "2"), bad_shape},
      {shaped("F32", "[-2]"), bad_shape},
      {shaped("F32", "[2.0]"), bad_shape},
      {shaped("F32", "[true]"), bad_shape},
      {shaped("F32", "[\"2\"]"), bad_shape},
      {shaped("F32", "[9223372036854775808]"), bad_shape},
      {shaped("F32", "[99999999999999999999999]"), bad_shape},
      {shaped("F32", "[4294967296,4294967296]"), "reaches 2^63 bits"},
      {shaped("U8", "[4294967296,4294967296,0]", "[0,0]"), "reaches 2^63 bits"},
      {shaped("U8", "[0,4294967296,4294967296]", "[0,0]"), "reaches 2^63 bits"},
      {shaped("F64", "[2305843009213693953]"), "reaches 2^63 bits"},  // 2^61 + 1: 8 bytes modulo 2^64
      {shaped("F4", "[3]"), "does not fill whole bytes"},
      {shaped("F6_E3M2", "[6]"), "does not fill whole bytes"},
      {shaped("F32", "[2]", "[0]"), bad_offsets},
      {shaped("F32", "[2]", "[0,8,8]"), bad_offsets},
      {shaped("F32", "[2]", "[-8,0]"), bad_offsets},
      {shaped("F32", "[2]", "[0,8.0]"), bad_offsets},
      {shaped("F32", "[2]", "{\"0\":0,\"1\":8}"), bad_offsets},
      {shaped("F32", "[2]", "[18446744073709551608,18446744073709551615]"), bad_offsets},
      {shaped("F32", "[2]", "[8,0]"), "F32 [2] has 8 bytes, but its data_offsets are [8, 0]"},
      {shaped("F32", "[3]"), "F32 [3] has 12 bytes, but its data_offsets are [0, 8]"},
      {shaped("F32", "[2]", "[9223372036854775799,9223372036854775807]"), "belong to no tensor"},
      {shaped("F32", "[2]", "[1,9]"), "bytes 0 to 1 of the data, before tensor \"t\", belong to no tensor"},
  };
  for (const Case& c : cases) {
    const std::string message = ErrorOf(FileOf("{\"t\":" + c.entry + "}", "12345678"));
    EXPECT_THAT(message, HasSubstr(c.message)) << c.entry;
    EXPECT_THAT(message, HasSubstr("tensor \"t\"")) << c.entry;
  }
}

TEST(Safetensors, RefusesHolesOverlapsAndDuplicates) {
  auto two = [](const std::string& a, const std::string& b) {
    return FileOf(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                      R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                  "12345678");
  };
  EXPECT_TRUE(Read(two("[0,4]", "[4,8]"))->ok());
  EXPECT_TRUE(Read(two("[4,8]", "[0,4]"))->ok());
  EXPECT_THAT(ErrorOf(two("[0,4]", "[0,4]")), HasSubstr("tensors \"a\" and \"b\" overlap at byte 0 of the data"));
  EXPECT_THAT(ErrorOf(two("[3,7]", "[0,4]")), HasSubstr("tensors \"b\" and \"a\" overlap at byte 3 of the data"));
  EXPECT_THAT(ErrorOf(two("[0,4]", "[5,9]")), HasSubstr("bytes 4 to 5 of the data, before tensor \"b\""));
  const std::string entry = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(ErrorOf(FileOf("{" + entry + "," + entry + "}", "")), HasSubstr("the key \"a\" stands twice"));
  EXPECT_THAT(ErrorOf(FileOf(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "")),
              HasSubstr("the key \"dtype\" stands twice"));
  // A name that is spelled in two ways is one name.
  EXPECT_THAT(ErrorOf(FileOf("{" + entry + R"(,"\u0061":1})", "")), HasSubstr("the key \"a\" stands twice"));
}

TEST(Safetensors, RefusesMetadataThatIsNotStrings) {
  for (const char* metadata : {"1", "[]", "[\"a\"]", "\"a\"", "null", "{\"a\":1}", "{\"a\":\"b\",\"c\":{}}"}) {
    EXPECT_THAT(ErrorOf(FileOf(absl::StrCat("{\"__metadata__\":", metadata, "}"), "")),
                HasSubstr("\"__metadata__\" must map strings to strings"))
        << metadata;
  }
  EXPECT_TRUE(Read(FileOf(R"({"__metadata__":{}})", ""))->ok());
}

TEST(Safetensors, EscapesNamesInMessages) {
  EXPECT_THAT(ErrorOf(FileOf(R"({"a\n\u001b[1m":1})", "")), HasSubstr(R"(tensor "a\n\x1b[1m")"));
}

class Fuzz : public ::testing::Test {
 protected:
  const std::string file_ =
      FileOf(R"({"__metadata__":{"k":"v"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
             R"("b":{"dtype":"F32","shape":[],"data_offsets":[12,16]},"c":{"dtype":"F4","shape":[10],)"
             R"("data_offsets":[16,21]},"d":{"dtype":"U8","shape":[0],"data_offsets":[21,21]}})",
             std::string(21, 'x'));
  size_t opened_ = 0;

  void Try(const std::string& mutant) {
    Read read(mutant);
    if (!read->ok()) {
      EXPECT_EQ(CodeOf(read->status()), "io");
      return;
    }
    ++opened_;
    read.ExpectSound();
  }
};

TEST_F(Fuzz, EveryByteFlipped) {
  CaseShare share("byte flips");
  for (size_t at = 0; at < file_.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      if (!share.Take()) continue;
      std::string mutant = file_;
      mutant[at] = static_cast<char>(value);
      Try(mutant);
      ASSERT_FALSE(HasFailure()) << "byte " << at << " = " << value;
    }
  }
  EXPECT_GT(opened_, 0u);
}

TEST_F(Fuzz, EveryNumberReplaced) {
  const std::string numbers[] = {"0",
                                 "1",
                                 "3",
                                 "4",
                                 "20",
                                 "22",
                                 "-1",
                                 "1e1",
                                 "1e400",
                                 "2147483648",
                                 "4294967296",
                                 "4611686018427387904",
                                 "9223372036854775807",
                                 "9223372036854775808",
                                 "18446744073709551615",
                                 "18446744073709551616",
                                 "null",
                                 "\"1\"",
                                 "[]",
                                 "{}"};
  size_t tried = 0;
  for (size_t at = 8; at < file_.size() - 21;) {
    size_t end = at;
    while (file_[end] >= '0' && file_[end] <= '9') ++end;
    if (end > at && (file_[at - 1] == '[' || file_[at - 1] == ',')) {
      for (const std::string& number : numbers) {
        std::string header = file_.substr(8, at - 8) + number + file_.substr(end, file_.size() - 21 - end);
        Try(FileOf(header, std::string(21, 'x')));
        ASSERT_FALSE(HasFailure()) << header;
        ++tried;
      }
    }
    at = end + 1;
  }
  EXPECT_GE(tried, 12 * std::size(numbers));
}

TEST_F(Fuzz, RandomMutations) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  CaseShare share("random mutations");
  for (int i = 0; i < 100'000; ++i) {
    std::string mutant = file_;
    for (size_t edits = 1 + below(4); edits > 0 && !mutant.empty(); --edits) {
      const size_t at = below(mutant.size());
      switch (below(5)) {
        case 0:
          mutant[at] ^= static_cast<char>(1 << below(8));
          break;
        case 1:
          mutant.erase(at, 1 + below(8));
          break;
        case 2:
          mutant.insert(at, mutant, below(mutant.size()), below(24));
          break;
        case 3:
          mutant.resize(at);
          break;
        default:
          mutant[at] = "0123456789{}[],:\""[below(17)];
      }
    }
    // Half of them with a length that fits again, so that the header is reached.
    if (mutant.size() > 8 + 21 && below(2) == 0) mutant.replace(0, 8, LengthOf(mutant.size() - 8 - 21));
    if (!share.Take()) continue;
    Try(mutant);
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace headrace
