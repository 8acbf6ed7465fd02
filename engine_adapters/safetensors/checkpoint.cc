#include "engine_adapters/safetensors/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine_adapters/safetensors/json_object.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kSingleName = "model.safetensors";
constexpr absl::string_view kIndexName = "model.safetensors.index.json";

// A name in the directory itself, of a file that can be opened under it.
bool IsFileName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

// tensor -> file name
absl::StatusOr<std::map<std::string, std::string>> ReadWeightMap(const std::string& index_path) {
  auto error = [&](absl::string_view what) { return Error(ErrorCode::kIo, absl::StrCat(index_path, ": ", what)); };
  HR_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(index_path));
  const absl::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  HR_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, index_path));
  const auto weight_map = json.find("weight_map");
  if (weight_map == json.end() || !weight_map->is_object()) return error("lacks the object \"weight_map\"");
  std::map<std::string, std::string> result;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !IsFileName(shard.get_ref<const std::string&>())) {
      return error(absl::StrCat("tensor ", Quoted(tensor), " is not mapped to a file name in this directory"));
    }
    result[tensor] = shard.get<std::string>();
  }
  return result;
}

// In tensors that are sorted by name.
const CheckpointTensor* FindIn(absl::Span<const CheckpointTensor> tensors, absl::string_view name) {
  const auto place = std::lower_bound(tensors.begin(), tensors.end(), name,
                                      [](const auto& tensor, absl::string_view n) { return tensor.spec.name < n; });
  return place != tensors.end() && place->spec.name == name ? &*place : nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& dir) {
  const std::string single = absl::StrCat(dir, "/", kSingleName);
  const std::string index = absl::StrCat(dir, "/", kIndexName);
  struct stat info;
  const bool has_single = stat(single.c_str(), &info) == 0;
  const bool has_index = stat(index.c_str(), &info) == 0;
  if (has_single == has_index) {
    return Error(ErrorCode::kIo, absl::StrCat(dir, ": holds ", has_single ? "both " : "neither ", kSingleName,
                                              has_single ? " and " : " nor ", kIndexName, ": give a directory with ",
                                              has_single ? "only one of them" : "one of them"));
  }
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(dir));
  if (has_index) {
    HR_RETURN_IF_ERROR(checkpoint->OpenShards(index));
  } else {
    HR_ASSIGN_OR_RETURN(checkpoint->tensors_, checkpoint->MapTensors(single));
  }
  return checkpoint;
}

absl::StatusOr<std::vector<CheckpointTensor>> Checkpoint::MapTensors(const std::string& path) {
  HR_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  files_.push_back(std::move(file));
  return ReadSafetensors(files_.back().bytes(), path);
}

absl::Status Checkpoint::OpenShards(const std::string& index_path) {
  HR_ASSIGN_OR_RETURN(const auto weight_map, ReadWeightMap(index_path));
  std::map<std::string, size_t> listed;  // shard -> tensors that the index places in it
  for (const auto& [tensor, shard] : weight_map) ++listed[shard];
  for (const auto& [shard, count] : listed) {
    const std::string path = absl::StrCat(dir_, "/", shard);
    HR_ASSIGN_OR_RETURN(std::vector<CheckpointTensor> tensors, MapTensors(path));
    for (const CheckpointTensor& tensor : tensors) {
      const std::string& name = tensor.spec.name;
      const auto entry = weight_map.find(name);
      if (entry == weight_map.end()) {
        return Error(ErrorCode::kIo, absl::StrCat(path, ": tensor ", Quoted(name), " is not listed in ", index_path));
      }
      if (entry->second != shard) {
        return Error(ErrorCode::kIo, absl::StrCat(path, ": holds tensor ", Quoted(name), ", which ", index_path,
                                                  " places in ", Quoted(entry->second)));
      }
    }
    // Every tensor of the shard is one that the index places here; so another number of them means that one is missing.
    if (tensors.size() != count) {
      for (const auto& [name, place] : weight_map) {
        if (place == shard && FindIn(tensors, name) == nullptr) {
          return Error(ErrorCode::kIo,
                       absl::StrCat(path, ": lacks tensor ", Quoted(name), ", which ", index_path, " places there"));
        }
      }
    }
    std::move(tensors.begin(), tensors.end(), std::back_inserter(tensors_));
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.spec.name < b.spec.name; });
  return absl::OkStatus();
}

const CheckpointTensor* Checkpoint::Find(absl::string_view name) const { return FindIn(tensors_, name); }

}  // namespace headrace
