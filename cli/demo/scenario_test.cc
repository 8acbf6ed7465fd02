#include "cli/demo/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine_adapters/safetensors/testing.h"
#include "planner/plan.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::byte kUntouched{0x5C};

LlamaConfig Tiny(Index heads = 6, Index kv_heads = 3, Index intermediate = 6) {
  LlamaConfig c;
  c.hidden = 10;
  c.intermediate = intermediate;
  c.layers = 2;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = 4;
  c.vocab = 11;
  c.tied = true;
  return c;
}

std::string CodeOfMake(TrainerKind kind, const LlamaConfig& model) {
  return std::string(CodeOf(MakeScenario(kind, model).status()));
}

TEST(MakeScenario, GivesTheFirstEngineThreeRanksWhereThatDivides) {
  for (TrainerKind kind : {TrainerKind::kMegatron, TrainerKind::kFsdp}) {
    EXPECT_THAT(MakeScenario(kind, Tiny(6, 3)).value().engines, ElementsAre(3, 1));
    EXPECT_THAT(MakeScenario(kind, Tiny(4, 2)).value().engines, ElementsAre(2, 1));  // heads
    EXPECT_EQ(CodeOfMake(kind, Tiny(6, 3, 8)), "shape_mismatch");  // 3 does not divide intermediate, 2 not the KV heads
    EXPECT_THAT(MakeScenario(kind, Tiny(6, 6, 8)).value().engines, ElementsAre(2, 1));  // intermediate
    EXPECT_EQ(CodeOfMake(kind, Tiny(5, 5)), "shape_mismatch");
  }
}

TEST(MakeScenario, CountsTrainersAndPadsVocabularies) {
  LlamaConfig c = Tiny();
  EXPECT_EQ(MakeScenario(TrainerKind::kMegatron, c).value().trainers, 6);
  EXPECT_EQ(MakeScenario(TrainerKind::kFsdp, c).value().trainers, 5);
  const std::map<Index, std::pair<Index, Index>> rows = {// vocabulary: engine, trainer
                                                         {1, {192, 256}},   {191, {192, 256}}, {192, {384, 256}},
                                                         {256, {384, 256}}, {257, {384, 512}}, {49152, {49344, 49152}}};
  for (const auto& [vocab, want] : rows) {
    c.vocab = vocab;
    const Scenario s = MakeScenario(TrainerKind::kMegatron, c).value();
    EXPECT_EQ(s.engine_vocab_rows, want.first) << vocab;
    EXPECT_EQ(s.trainer_vocab_rows, want.second) << vocab;
  }
}

TEST(MakeScenario, RefusesOtherDtypes) {
  LlamaConfig c = Tiny();
  c.dtype = Dtype::kF16;
  EXPECT_EQ(CodeOfMake(TrainerKind::kMegatron, c), "");
  EXPECT_EQ(CodeOfMake(TrainerKind::kFsdp, c), "invalid_option");
  c.dtype = Dtype::kF32;
  EXPECT_EQ(CodeOfMake(TrainerKind::kMegatron, c), "invalid_option");
  EXPECT_EQ(CodeOfMake(TrainerKind::kFsdp, c), "invalid_option");
}

TEST(TrainerKind, HasNames) {
  for (TrainerKind kind : {TrainerKind::kMegatron, TrainerKind::kFsdp}) {
    EXPECT_EQ(TrainerKindFromName(NameOf(kind)).value(), kind);
  }
  EXPECT_EQ(NameOf(TrainerKind::kMegatron), "megatron");
  EXPECT_EQ(NameOf(TrainerKind::kFsdp), "fsdp");
  EXPECT_EQ(CodeOf(TrainerKindFromName("Megatron").status()), "invalid_option");
}

TEST(ChooseShadow, FollowsWhatIsAskedTheTransportAndWhereTheWeightsAre) {
  // What is wanted, on which transport, with the weights on a GPU; "": refused, with a way out.
  const struct {
    std::string wanted, transport;
    bool gpu;
    std::string shadow, advice;
  } cases[] = {
      {"", "host", false, "host", ""},
      {"", "ucx", false, "host", ""},
      {"", "nccl", false, "host", ""},
      {"", "cuda", false, "", "--gpu"},
      {"host", "host", false, "host", ""},
      {"host", "ucx", false, "host", ""},
      {"host", "nccl", false, "host", ""},
      {"host", "cuda", false, "", "--gpu"},
      {"device", "host", false, "", "--gpu"},
      {"device", "ucx", false, "", "--gpu"},
      {"device", "nccl", false, "", "--gpu"},
      {"device", "cuda", false, "", "--gpu"},
      {"off", "host", false, "off", ""},
      {"off", "ucx", false, "off", ""},
      {"off", "nccl", false, "off", ""},
      {"off", "cuda", false, "", "--gpu"},
      {"", "host", true, "host", ""},
      {"", "ucx", true, "device", ""},
      {"", "nccl", true, "device", ""},
      {"", "cuda", true, "device", ""},
      {"host", "host", true, "host", ""},
      {"host", "ucx", true, "host", ""},
      {"host", "nccl", true, "host", ""},
      {"host", "cuda", true, "", "--shadow device or off"},
      {"device", "host", true, "", "--shadow host"},
      {"device", "ucx", true, "device", ""},
      {"device", "nccl", true, "device", ""},
      {"device", "cuda", true, "device", ""},
      {"off", "host", true, "", "--shadow host"},
      {"off", "ucx", true, "off", ""},
      {"off", "nccl", true, "off", ""},
      {"off", "cuda", true, "off", ""},
      {"gpu", "nccl", true, "", "host, device and off"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.wanted + " over " + c.transport + (c.gpu ? " on a GPU" : ""));
    const absl::StatusOr<Shadow> shadow = ChooseShadow(c.wanted, c.transport, c.gpu);
    if (c.shadow.empty()) {
      EXPECT_EQ(CodeOf(shadow.status()), "invalid_option");
      EXPECT_THAT(std::string(shadow.status().message()), HasSubstr(c.advice));
      continue;
    }
    ASSERT_TRUE(shadow.ok()) << shadow.status();
    EXPECT_EQ(NameOf(*shadow), c.shadow);
    // The ranks are told the name of what was chosen.
    EXPECT_EQ(ChooseShadow(NameOf(*shadow), c.transport, c.gpu).value(), *shadow);
  }
}

TEST(WholeManifest, PlansAndIsItsMembersParts) {
  for (TrainerKind kind : {TrainerKind::kMegatron, TrainerKind::kFsdp}) {
    for (const LlamaConfig& model : {Tiny(), Tiny(4, 2)}) {
      const Scenario s = MakeScenario(kind, model).value();
      const Manifest whole = WholeManifest(s).value();
      const auto plan = BuildPlan(whole);  // proves that each wanted element has one source
      EXPECT_TRUE(plan.ok()) << plan.status();
      std::map<int64_t, size_t> sources, destinations;
      for (const Buffer& b : whole.source) ++sources[b.rank];
      for (const Buffer& b : whole.destination) ++destinations[b.rank];
      const int workers = s.engines[0] + s.engines[1];
      ASSERT_EQ(sources.size(), static_cast<size_t>(s.trainers));
      ASSERT_EQ(destinations.size(), static_cast<size_t>(workers));
      for (int r = 0; r < s.trainers; ++r) {
        const Manifest part = TrainerPart(s, r).value();
        EXPECT_EQ(part.source.size(), sources[r]);
        EXPECT_EQ(part.destination.size(), 0u);
        EXPECT_EQ(part.tensors.size(), whole.tensors.size());
        ASSERT_EQ(part.topology.source.size(), 1u);
        EXPECT_EQ(part.topology.source[0].rank, r);
        EXPECT_EQ(whole.topology.source[r].rank, r);
      }
      for (int rank = 0; rank < workers; ++rank) {
        const int engine = rank < s.engines[0] ? 0 : 1;
        const Manifest part = WorkerPart(s, engine, engine == 0 ? rank : 0).value();
        EXPECT_EQ(part.destination.size(), destinations[rank]);
        for (const Buffer& b : part.destination) EXPECT_EQ(b.rank, rank);
        ASSERT_EQ(part.topology.destination.size(), 1u);
        EXPECT_EQ(part.topology.destination[0].engine, engine == 0 ? "e0" : "e1");
        EXPECT_EQ(whole.topology.destination[rank].rank, rank);
        EXPECT_EQ(whole.topology.destination[rank].engine, engine == 0 ? "e0" : "e1");
      }
    }
  }
}

// A checkpoint of random bits, every seventh value an infinity, a NaN, a zero or a denormal; and the bits by tensor.
struct Weights {
  Weights() {
    std::vector<testing::NamedTensor> named;
    const std::vector<TensorSpec> specs = LlamaTensors(Tiny()).value();
    for (const TensorSpec& t : specs) named.push_back({t.name, "BF16", t.shape});
    std::string file = testing::FileOf(named);
    size_t total = 0;
    for (const auto& t : named) total += static_cast<size_t>(Count(t.shape));
    std::mt19937 random(5);
    const uint16_t special[] = {0x7F80, 0xFF80, 0x7FC1, 0xFF81, 0x0000, 0x8000, 0x0001, 0x7F7F};
    std::vector<uint16_t> all(total);
    for (size_t i = 0; i < total; ++i) all[i] = i % 7 == 0 ? special[i / 7 % 8] : static_cast<uint16_t>(random());
    std::memcpy(file.data() + file.size() - 2 * total, all.data(), 2 * total);
    const std::string dir = testing::NewDirectory();
    testing::WriteFile(dir + "/model.safetensors", file);
    checkpoint = Checkpoint::Open(dir).value();
    auto at = all.begin();
    for (const auto& t : named) {
      names.push_back(t.name);
      shapes[t.name] = t.shape;
      bits[t.name].assign(at, at + Count(t.shape));
      at += Count(t.shape);
    }
  }

  static Index Count(const Extents& shape) {
    Index count = 1;
    for (Index e : shape) count *= e;
    return count;
  }

  std::unique_ptr<Checkpoint> checkpoint;
  std::vector<std::string> names;  // sorted
  std::map<std::string, Extents> shapes;
  std::map<std::string, std::vector<uint16_t>> bits;
};

// Every element of every tensor piece of a buffer: (place in memory, tensor, element).
struct Element {
  Index place;
  std::string tensor;
  Index element;
};
std::vector<Element> ElementsOf(const Weights& weights, const Buffer& b) {
  std::vector<Element> elements;
  for (const Piece& p : b.pieces) {
    if (p.kind != PieceKind::kTensor) continue;
    EXPECT_TRUE(p.axes.empty() && !p.view);
    const Extents& shape = weights.shapes.at(p.tensor);
    for (Index n = 0; n < Weights::Count(p.shape); ++n) {
      Index rest = n, element = 0, weight = 1, place = 0;
      for (size_t i = p.shape.size(); i-- > 0; rest /= p.shape[i]) {
        element += (p.tensor_offset[i] + rest % p.shape[i]) * weight;
        weight *= shape[i];
        place += (p.buffer_offset[i] + rest % p.shape[i]) * b.strides[i];
      }
      elements.push_back({place, p.tensor, element});
    }
  }
  return elements;
}

// What the header promises, spelled again.
uint64_t Wanted(TrainerKind kind, uint16_t bits, uint64_t generation, uint64_t tensor, uint64_t element) {
  const uint64_t moved = bits ^ (generation - 1) % 8;
  if (kind == TrainerKind::kMegatron) return moved;
  uint64_t z = tensor * 1099511627776u + element + 11400714819323198485u;
  z = (z ^ z / 1073741824u) * 13787848793156543929u;
  z = (z ^ z / 134217728u) * 10723151780598845931u;
  z ^= z / 2147483648u;
  uint64_t fraction = z >> 48;
  if (fraction < 0x1000) fraction = 0x8000;
  if ((bits >> 7 & 0xFF) == 0xFF) fraction = 0;
  return moved * 65536 + fraction;
}

void CheckWeights(TrainerKind kind) {
  const Weights weights;
  const Scenario s = MakeScenario(kind, Tiny()).value();
  const size_t width = kind == TrainerKind::kMegatron ? 2 : 4;
  std::map<std::string, std::vector<int>> held;
  int ties = 0;
  for (const std::string& name : weights.names) held[name].resize(weights.bits.at(name).size());
  for (uint64_t generation : {1, 2, 3, 8, 9}) {
    for (int rank = 0; rank < s.trainers; ++rank) {
      const Manifest part = TrainerPart(s, rank).value();
      for (const Buffer& b : part.source) {
        std::vector<std::byte> memory(static_cast<size_t>(SpanElements(b)) * width, kUntouched);
        std::vector<std::byte> want = memory;
        for (const Element& e : ElementsOf(weights, b)) {
          const uint64_t n = std::find(weights.names.begin(), weights.names.end(), e.tensor) - weights.names.begin();
          const uint64_t value = Wanted(kind, weights.bits.at(e.tensor)[e.element], generation, n, e.element);
          std::memcpy(want.data() + e.place * width, &value, width);
          ++held[e.tensor][e.element];
          ties += width == 4 && (value & 0xFFFF) == 0x8000 ? 1 : 0;
        }
        WriteWeights(s, *weights.checkpoint, b, generation, memory.data());
        ASSERT_EQ(memory, want) << NameOf(kind) << " generation " << generation << " rank " << rank << " " << b.name;
      }
    }
  }
  for (const auto& [name, counts] : held) {
    for (int n : counts) ASSERT_GE(n, 5) << name << ": an element that no rank holds in each generation";
  }
  EXPECT_EQ(ties > 100, kind == TrainerKind::kFsdp) << ties;
}

TEST(WriteWeights, MegatronFlipsTheLowestBits) { CheckWeights(TrainerKind::kMegatron); }

TEST(WriteWeights, FsdpHasBitsToRound) { CheckWeights(TrainerKind::kFsdp); }

TEST(WriteWeights, EveryStepChangesEveryWeight) {
  const Weights weights;
  for (TrainerKind kind : {TrainerKind::kMegatron, TrainerKind::kFsdp}) {
    const Scenario s = MakeScenario(kind, Tiny()).value();
    const size_t width = kind == TrainerKind::kMegatron ? 2 : 4;
    const Manifest part = TrainerPart(s, 0).value();
    for (const Buffer& b : part.source) {
      std::vector<std::vector<std::byte>> memory(4, std::vector<std::byte>(SpanElements(b) * width));
      for (uint64_t g = 1; g <= 3; ++g) WriteWeights(s, *weights.checkpoint, b, g, memory[g].data());
      for (const Element& e : ElementsOf(weights, b)) {
        for (const auto& [one, other] : {std::pair{1, 2}, {2, 3}, {1, 3}}) {
          ASSERT_NE(std::memcmp(&memory[one][e.place * width], &memory[other][e.place * width], width), 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
