#include "engine_adapters/safetensors/checkpoint.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "engine_adapters/c_api/boundary.h"
#include "engine_adapters/c_api/headrace.h"
#include "planner/manifest_json.h"
#include "planner/status.h"

struct hr_checkpoint {
  std::unique_ptr<headrace::Checkpoint> checkpoint;
};

namespace headrace {
namespace {

// Each tensor is one row-major source buffer of its own name.
Manifest PartOf(const Checkpoint& checkpoint, int rank) {
  Manifest part;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const TensorSpec& spec = tensor.spec;
    Piece whole;
    whole.tensor = spec.name;
    whole.shape = spec.shape;
    whole.tensor_offset = whole.buffer_offset = Extents(spec.shape.size(), 0);
    Buffer buffer;
    buffer.rank = rank;
    buffer.name = spec.name;
    buffer.dtype = spec.dtype;
    buffer.shape = spec.shape;
    buffer.strides = RowMajorStrides(spec.shape);
    buffer.pieces.push_back(std::move(whole));
    part.tensors.push_back(spec);
    part.source.push_back(std::move(buffer));
  }
  part.topology.source.push_back({rank, "", "", ""});
  return part;
}

nlohmann::ordered_json MemoryOf(const Checkpoint& checkpoint) {
  auto memory = nlohmann::ordered_json::object();
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    memory[tensor.spec.name] = reinterpret_cast<uintptr_t>(tensor.bytes.data());
  }
  return memory;
}

}  // namespace
}  // namespace headrace

extern "C" {

char* hr_checkpoint_open(const char* directory, hr_checkpoint** checkpoint) {
  return headrace::Guard([&]() -> absl::Status {
    auto handle = std::make_unique<hr_checkpoint>();
    HR_ASSIGN_OR_RETURN(handle->checkpoint, headrace::Checkpoint::Open(directory));
    *checkpoint = handle.release();
    return absl::OkStatus();
  });
}

char* hr_checkpoint_part(hr_checkpoint* checkpoint, int rank, char** part) {
  return headrace::Guard([&] {
    *part =
        headrace::NewText(absl::string_view(headrace::ManifestToJson(headrace::PartOf(*checkpoint->checkpoint, rank))));
    return absl::OkStatus();
  });
}

char* hr_checkpoint_memory(hr_checkpoint* checkpoint, char** memory) {
  return headrace::Guard([&] {
    *memory = headrace::NewText(headrace::MemoryOf(*checkpoint->checkpoint));
    return absl::OkStatus();
  });
}

void hr_checkpoint_free(hr_checkpoint* checkpoint) { delete checkpoint; }

}  // extern "C"
