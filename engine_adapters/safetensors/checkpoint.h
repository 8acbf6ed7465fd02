#ifndef HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_CHECKPOINT_H_
#define HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_CHECKPOINT_H_

// A checkpoint directory: model.safetensors, or the shards that model.safetensors.index.json lists
// ({"metadata": ..., "weight_map": {tensor: file name}}, as Hugging Face's save_pretrained writes it).
//
// The files are mapped read-only, so that opening costs no more than the headers, and tensors are read when they are
// touched. Files that are cut or rewritten in place after Open are out of scope: a read of a page that was lost ends
// the process with SIGBUS. Replace a checkpoint's files by renames.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine_adapters/safetensors/mapped_file.h"
#include "engine_adapters/safetensors/safetensors.h"

namespace headrace {

// Thread-safe: constant after Open. Its tensors' bytes live as long as it does.
class Checkpoint {
 public:
  // io  neither form or both are there, a file that cannot be read, what ReadSafetensors refuses, and in an index: no
  //     weight_map of strings, a shard outside of the directory, a tensor that its shard lacks, one that stands in two
  //     shards or in another shard than the index says
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& dir);

  const std::string& dir() const { return dir_; }

  // Sorted by name; names are unique.
  absl::Span<const CheckpointTensor> tensors() const { return tensors_; }

  // nullptr when there is none of that name.
  const CheckpointTensor* Find(absl::string_view name) const;

 private:
  explicit Checkpoint(std::string dir) : dir_(std::move(dir)) {}

  absl::Status OpenShards(const std::string& index_path);
  // Maps a file and returns its tensors.
  absl::StatusOr<std::vector<CheckpointTensor>> MapTensors(const std::string& path);

  const std::string dir_;
  std::vector<MappedFile> files_;
  std::vector<CheckpointTensor> tensors_;
};

}  // namespace headrace

#endif  // HEADRACE_ENGINE_ADAPTERS_SAFETENSORS_CHECKPOINT_H_
