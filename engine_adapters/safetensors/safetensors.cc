#include "engine_adapters/safetensors/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine_adapters/safetensors/json_object.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;

struct Entry {
  TensorSpec spec;
  Index begin = 0;  // bytes from the start of the data
  Index end = 0;
};

std::string ShapeText(const TensorSpec& spec) {
  return absl::StrCat(DtypeName(spec.dtype), " [", absl::StrJoin(spec.shape, ", "), "]");
}

// A list of numbers from 0 to 2^63 - 1.
std::optional<Extents> Naturals(const Json& j) {
  if (!j.is_array()) return std::nullopt;
  Extents numbers;
  for (const Json& number : j) {
    if (!number.is_number_unsigned()) return std::nullopt;
    const uint64_t value = number.get<uint64_t>();
    if (value > static_cast<uint64_t>(std::numeric_limits<Index>::max())) return std::nullopt;
    numbers.push_back(static_cast<Index>(value));
  }
  return numbers;
}

// The bytes of a tensor. Extents of 0 count as 1 against overflow, so that strides can be computed for every shape that
// passes. On failure: what is wrong.
std::optional<Index> TensorBytes(const TensorSpec& spec, std::string& fault) {
  Index elements = 1;
  Index limit = DtypeBits(spec.dtype);
  bool empty = false;
  for (const Index extent : spec.shape) {
    empty |= extent == 0;
    const Index factor = std::max<Index>(extent, 1);
    if (__builtin_mul_overflow(elements, factor, &elements) || __builtin_mul_overflow(limit, factor, &limit)) {
      fault = absl::StrCat(ShapeText(spec), " reaches 2^63 bits");
      return std::nullopt;
    }
  }
  if (empty) return 0;
  if (elements % DtypeUnitElements(spec.dtype) != 0) {
    fault = absl::StrCat(ShapeText(spec), " does not fill whole bytes");
    return std::nullopt;
  }
  return elements / DtypeUnitElements(spec.dtype) * DtypeUnitBytes(spec.dtype);
}

absl::StatusOr<Entry> ReadEntry(const std::string& name, const Json& j, absl::string_view path) {
  auto error = [&](absl::string_view what) {
    return Error(ErrorCode::kIo, absl::StrCat(path, ": tensor ", Quoted(name), ": ", what));
  };
  if (!j.is_object() || j.size() != 3 || !j.contains("dtype") || !j.contains("shape") || !j.contains("data_offsets")) {
    return error("must have exactly the fields dtype, shape and data_offsets");
  }
  Entry entry;
  entry.spec.name = name;
  const Json& dtype_name = j["dtype"];
  if (!dtype_name.is_string()) return error("its dtype is no string");
  const std::optional<Dtype> dtype = DtypeFromName(dtype_name.get_ref<const std::string&>());
  if (!dtype) return error(absl::StrCat("unknown dtype ", Quoted(dtype_name.get_ref<const std::string&>())));
  entry.spec.dtype = *dtype;
  std::optional<Extents> shape = Naturals(j["shape"]);
  if (!shape) return error("its shape is no list of numbers from 0 to 2^63 - 1");
  entry.spec.shape = *std::move(shape);
  const std::optional<Extents> offsets = Naturals(j["data_offsets"]);
  if (!offsets || offsets->size() != 2) return error("its data_offsets are not two numbers from 0 to 2^63 - 1");
  entry.begin = (*offsets)[0];
  entry.end = (*offsets)[1];
  std::string fault;
  const std::optional<Index> bytes = TensorBytes(entry.spec, fault);
  if (!bytes) return error(fault);
  if (entry.begin > entry.end || entry.end - entry.begin != *bytes) {
    return error(absl::StrCat(ShapeText(entry.spec), " has ", *bytes, " bytes, but its data_offsets are [", entry.begin,
                              ", ", entry.end, "]"));
  }
  return entry;
}

absl::Status CheckMetadata(const Json& metadata, absl::string_view path) {
  const bool strings = metadata.is_object() &&
                       std::all_of(metadata.begin(), metadata.end(), [](const Json& j) { return j.is_string(); });
  if (strings) return absl::OkStatus();
  return Error(ErrorCode::kIo, absl::StrCat(path, ": \"__metadata__\" must map strings to strings"));
}

// Sorts the entries by place and returns the bytes of data that they hold together.
absl::StatusOr<Index> CheckPlaces(std::vector<Entry>& entries, absl::string_view path) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  Index at = 0;
  const Entry* previous = nullptr;
  for (const Entry& entry : entries) {
    if (entry.begin > at) {
      return Error(ErrorCode::kIo,
                   absl::StrCat(path, ": bytes ", at, " to ", entry.begin, " of the data, before tensor ",
                                Quoted(entry.spec.name), ", belong to no tensor"));
    }
    if (entry.begin < at) {
      return Error(ErrorCode::kIo,
                   absl::StrCat(path, ": tensors ", Quoted(previous->spec.name), " and ", Quoted(entry.spec.name),
                                " overlap at byte ", entry.begin, " of the data"));
    }
    at = entry.end;
    previous = &entry;
  }
  return at;
}

}  // namespace

absl::StatusOr<std::vector<CheckpointTensor>> ReadSafetensors(absl::Span<const std::byte> file,
                                                              absl::string_view path) {
  auto error = [&](absl::string_view what) { return Error(ErrorCode::kIo, absl::StrCat(path, ": ", what)); };
  if (file.size() < kLengthBytes) {
    return error(
        absl::StrCat("truncated: the header's length takes ", kLengthBytes, " bytes, the file has ", file.size()));
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_bytes |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  if (header_bytes > kMaxJsonBytes) {
    return error(
        absl::StrCat("no safetensors file: a header of ", header_bytes, " bytes, the format allows ", kMaxJsonBytes));
  }
  const size_t data_start = kLengthBytes + header_bytes;
  if (data_start > file.size()) {
    return error(absl::StrCat("truncated: the header ends at byte ", data_start, ", the file has ", file.size()));
  }
  const absl::string_view header(reinterpret_cast<const char*>(file.data()) + kLengthBytes, header_bytes);
  if (header.empty() || header[0] != '{') return error("no safetensors file: the header does not start with '{'");
  HR_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(header, absl::StrCat(path, ": header")));

  std::vector<Entry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      HR_RETURN_IF_ERROR(CheckMetadata(value, path));
      continue;
    }
    HR_ASSIGN_OR_RETURN(Entry entry, ReadEntry(name, value, path));
    entries.push_back(std::move(entry));
  }
  HR_ASSIGN_OR_RETURN(const Index data_bytes, CheckPlaces(entries, path));
  const uint64_t expected = data_start + static_cast<uint64_t>(data_bytes);
  if (expected > file.size()) {
    const auto lost = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
      return static_cast<uint64_t>(entry.end) > file.size() - data_start;
    });
    return error(absl::StrCat("truncated: header says ", expected, " bytes, the file has ", file.size(),
                              "; the first tensor that is cut is ", Quoted(lost->spec.name)));
  }
  if (expected < file.size()) {
    return error(absl::StrCat("header says ", expected, " bytes, the file has ", file.size(), ": ",
                              file.size() - expected, " bytes at the end belong to no tensor"));
  }
  const absl::Span<const std::byte> data = file.subspan(data_start);
  std::vector<CheckpointTensor> tensors;
  tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    tensors.push_back({std::move(entry.spec),
                       data.subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin))});
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.spec.name < b.spec.name; });
  return tensors;
}

}  // namespace headrace
