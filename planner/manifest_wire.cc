#include "planner/manifest_wire.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "planner/number_columns.h"
#include "planner/status.h"
#include "planner/utf8.h"

namespace headrace {
namespace {

constexpr char kVersion = 1;
constexpr uint64_t kMaxBytes = uint64_t{1} << 30;  // of what is read

// The entries of one kind.
struct Kind {
  std::string code;
  std::vector<std::vector<int64_t>> columns;
};

// An entry's kind and its numbers.
class Writer {
 public:
  void Small(uint64_t value) { AppendVarint(value, &kind); }
  void Number(int64_t value) { numbers.push_back(value); }
  void Numbers(const Extents& values) {
    Small(values.size());
    numbers.insert(numbers.end(), values.begin(), values.end());
  }
  // Text, digits, text, digits, ..., text: all but the digits is the kind's.
  void Text(absl::string_view text) {
    std::string code;
    uint64_t found = 0;
    size_t begin = 0;
    for (size_t i = 0; i < text.size();) {
      size_t end = i;
      while (end < text.size() && absl::ascii_isdigit(text[end])) ++end;
      int64_t value;
      // Digits that are written again as they are.
      const bool number = end > i && end - i <= 18 && (text[i] != '0' || end == i + 1) &&
                          absl::SimpleAtoi(text.substr(i, end - i), &value);
      if (number) {
        Literal(text.substr(begin, i - begin), &code);
        numbers.push_back(value);
        ++found;
        begin = end;
      }
      i = std::max(end, i + 1);
    }
    Literal(text.substr(begin), &code);
    Small(found);
    kind += code;
  }
  template <typename E>
  void Enum(E value, E /*last*/) {
    Small(static_cast<uint64_t>(value));
  }
  template <typename T>
  bool Has(const std::optional<T>& value) {
    Small(value.has_value() ? 1 : 0);
    return value.has_value();
  }
  void Flag(bool value) { Small(value ? 1 : 0); }
  void Numbers(const std::vector<int>& values) {
    Small(values.size());
    numbers.insert(numbers.end(), values.begin(), values.end());
  }
  // How many there are; they are entries of their own.
  void Count(const std::vector<Piece>& pieces) { Number(static_cast<int64_t>(pieces.size())); }

  std::string kind;
  std::vector<int64_t> numbers;

 private:
  static void Literal(absl::string_view text, std::string* code) {
    AppendVarint(text.size(), code);
    absl::StrAppend(code, text);
  }
};

// Reads what Writer wrote; after a mistake everything is empty and `failed` is set.
class Reader {
 public:
  // `pieces` are left for the buffers that are still to be read.
  Reader(const Kind& kind, size_t row, uint64_t* pieces)
      : kind_(kind.code), columns_(kind.columns), row_(row), pieces_(pieces) {}

  uint64_t Small() {
    absl::StatusOr<uint64_t> value = failed ? absl::StatusOr<uint64_t>(0) : TakeVarint(&kind_);
    if (!value.ok()) failed = true;
    return failed ? 0 : *value;
  }
  void Number(int64_t& value) {
    failed = failed || next_ == columns_.size();
    value = failed ? 0 : columns_[next_++][row_];
  }
  template <typename T>
  void Numbers(std::vector<T>& values) {
    const uint64_t count = Small();
    failed = failed || count > columns_.size() - next_;
    values.resize(failed ? 0 : count);
    for (T& value : values) {
      int64_t number;
      Number(number);
      value = static_cast<T>(number);
      failed = failed || value != number;
    }
  }
  void Text(std::string& text) {
    text.clear();
    const uint64_t found = Small();
    for (uint64_t i = 0; i <= found && !failed; ++i) {
      const uint64_t length = Small();
      failed = failed || length > kind_.size();
      if (failed) break;
      absl::StrAppend(&text, kind_.substr(0, length));
      kind_.remove_prefix(length);
      if (i == found) break;
      int64_t value;
      Number(value);
      failed = failed || value < 0;
      absl::StrAppend(&text, value);
    }
    failed = failed || !IsUtf8(text);
  }
  template <typename E>
  void Enum(E& value, E last) {
    const uint64_t code = Small();
    failed = failed || code > static_cast<uint64_t>(last);
    value = failed ? E{} : static_cast<E>(code);
  }
  template <typename T>
  bool Has(std::optional<T>& value) {
    bool has;
    Flag(has);
    if (has) value.emplace();
    return has;
  }
  void Flag(bool& value) {
    const uint64_t code = Small();
    failed = failed || code > 1;
    value = !failed && code == 1;
  }
  void Count(std::vector<Piece>& pieces) {
    int64_t count;
    Number(count);
    failed = failed || count < 0 || static_cast<uint64_t>(count) > *pieces_;
    if (failed) return;
    *pieces_ -= static_cast<uint64_t>(count);
    pieces.resize(count);
  }

  // Whether everything was read, and well.
  bool Done() const { return !failed && kind_.empty() && next_ == columns_.size(); }

  bool failed = false;

 private:
  absl::string_view kind_;
  const std::vector<std::vector<int64_t>>& columns_;
  const size_t row_;
  uint64_t* const pieces_;
  size_t next_ = 0;
};

// The fields of each entry, for both directions. T is const for a Writer.
template <typename A, typename T>
concept Entry = std::is_same_v<std::remove_const_t<A>, T>;

template <typename Stream, Entry<TensorSpec> T>
void Visit(Stream& s, T& tensor) {
  s.Text(tensor.name);
  s.Numbers(tensor.shape);
  s.Enum(tensor.dtype, Dtype::kU64);
}

template <typename Stream, Entry<Piece> T>
void Visit(Stream& s, T& piece) {
  s.Enum(piece.kind, PieceKind::kKeep);
  s.Text(piece.tensor);
  s.Numbers(piece.tensor_offset);
  s.Numbers(piece.shape);
  s.Numbers(piece.buffer_offset);
  s.Numbers(piece.axes);
  if (s.Has(piece.view)) s.Numbers(*piece.view);
}

template <typename Stream, Entry<Buffer> T>
void Visit(Stream& s, T& buffer) {
  s.Number(buffer.rank);
  s.Text(buffer.name);
  s.Enum(buffer.dtype, Dtype::kU64);
  s.Numbers(buffer.shape);
  s.Numbers(buffer.strides);
  s.Count(buffer.pieces);
  if (s.Has(buffer.storage)) {
    s.Text(buffer.storage->id);
    s.Number(buffer.storage->offset_bytes);
  }
  if (s.Has(buffer.alias_of)) s.Text(*buffer.alias_of);
  s.Flag(buffer.convert_rne);
}

template <typename Stream, Entry<Placement> T>
void Visit(Stream& s, T& placement) {
  s.Number(placement.rank);
  s.Text(placement.host);
  s.Text(placement.domain);
  s.Text(placement.engine);
}

template <typename Stream, Entry<std::string> T>
void Visit(Stream& s, T& ignored) {
  s.Text(ignored);
}

template <typename Stream, Entry<Coupling> T>
void Visit(Stream& s, T& coupling) {
  s.Text(coupling.weight);
  s.Text(coupling.scale);
  s.Numbers(coupling.block);
}

// Calls f(list, entry) for the entries of a manifest, list by list in the order in which they are written.
constexpr size_t kLists = 8;
template <typename M, typename F>
void EachEntry(M& manifest, F&& f) {
  size_t at = 0;
  auto list = [&](auto& entries) {
    for (auto& entry : entries) f(at, entry);
    ++at;
  };
  list(manifest.tensors);
  list(manifest.source);
  list(manifest.destination);
  list(manifest.topology.source);
  list(manifest.topology.destination);
  list(manifest.ignore);
  list(manifest.coupled);
  for (auto* side : {&manifest.source, &manifest.destination}) {
    for (auto& buffer : *side) {
      for (auto& piece : buffer.pieces) f(at, piece);
    }
  }
}

absl::Status Malformed(absl::string_view what) {
  return Error(ErrorCode::kMalformed, absl::StrCat("a manifest's bytes are damaged: ", what));
}

absl::StatusOr<absl::string_view> TakeBytes(absl::string_view* in, uint64_t count) {
  if (count > in->size()) return Malformed("they end too early");
  const absl::string_view bytes = in->substr(0, count);
  in->remove_prefix(count);
  return bytes;
}

// What is read of a manifest before its entries: kinds with their columns, and for each list its entries' kinds.
struct Tables {
  std::vector<Kind> kinds;
  std::vector<std::vector<int64_t>> lists;
};

absl::StatusOr<Tables> TakeTables(absl::string_view* in) {
  Tables t;
  HR_ASSIGN_OR_RETURN(const uint64_t kinds, TakeVarint(in));
  if (kinds > in->size()) return Malformed("more kinds than bytes");
  for (uint64_t k = 0; k < kinds; ++k) {
    HR_ASSIGN_OR_RETURN(const uint64_t length, TakeVarint(in));
    HR_ASSIGN_OR_RETURN(const absl::string_view code, TakeBytes(in, length));
    t.kinds.push_back({std::string(code), {}});
  }
  uint64_t needed = 0;
  auto need = [&](uint64_t count, uint64_t each) -> absl::Status {
    if (count > kMaxBytes || each > kMaxBytes || (needed += count * each) > kMaxBytes) {
      return Error(ErrorCode::kOutOfMemory,
                   "a manifest of more than 1 GiB; give each rank fewer buffers, or split the job");
    }
    return absl::OkStatus();
  };
  std::vector<uint64_t> entries(kinds, 0);
  for (size_t l = 0; l < kLists; ++l) {
    HR_ASSIGN_OR_RETURN(const uint64_t count, TakeVarint(in));
    HR_RETURN_IF_ERROR(need(count, sizeof(Buffer)));
    HR_ASSIGN_OR_RETURN(std::vector<int64_t> list, TakeColumn(in, count));
    for (const int64_t k : list) {
      if (k < 0 || static_cast<uint64_t>(k) >= kinds) return Malformed("an entry of an unknown kind");
      HR_RETURN_IF_ERROR(need(1, t.kinds[k].code.size()));
      ++entries[k];
    }
    t.lists.push_back(std::move(list));
  }
  for (uint64_t k = 0; k < kinds; ++k) {
    HR_ASSIGN_OR_RETURN(const uint64_t columns, TakeVarint(in));
    HR_RETURN_IF_ERROR(need(columns, entries[k] * sizeof(int64_t)));
    if (columns > in->size()) return Malformed("more columns than bytes");
    for (uint64_t c = 0; c < columns; ++c) {
      HR_ASSIGN_OR_RETURN(std::vector<int64_t> column, TakeColumn(in, entries[k]));
      t.kinds[k].columns.push_back(std::move(column));
    }
  }
  return t;
}

}  // namespace

std::string ManifestToWire(const Manifest& manifest) {
  absl::flat_hash_map<std::string, size_t> index;
  std::vector<Kind> kinds;
  std::vector<std::vector<int64_t>> lists(kLists);
  EachEntry(manifest, [&](size_t list, const auto& entry) {
    Writer writer;
    writer.Small(list);
    Visit(writer, entry);
    const auto [it, fresh] = index.try_emplace(writer.kind, kinds.size());
    if (fresh) kinds.push_back({std::move(writer.kind), std::vector<std::vector<int64_t>>(writer.numbers.size())});
    Kind& kind = kinds[it->second];
    for (size_t c = 0; c < writer.numbers.size(); ++c) kind.columns[c].push_back(writer.numbers[c]);
    lists[list].push_back(static_cast<int64_t>(it->second));
  });
  std::string out(1, kVersion);
  AppendVarint(kinds.size(), &out);
  for (const Kind& kind : kinds) {
    AppendVarint(kind.code.size(), &out);
    out += kind.code;
  }
  for (const std::vector<int64_t>& list : lists) {
    AppendVarint(list.size(), &out);
    AppendColumn(list, &out);
  }
  for (const Kind& kind : kinds) {
    AppendVarint(kind.columns.size(), &out);
    for (const std::vector<int64_t>& column : kind.columns) AppendColumn(column, &out);
  }
  return out;
}

absl::StatusOr<Manifest> ParseManifestWire(absl::string_view bytes) {
  if (bytes.empty() || bytes.front() != kVersion) {
    return Malformed("they do not begin with version 1; all members of a job must have the same Headrace");
  }
  bytes.remove_prefix(1);
  HR_ASSIGN_OR_RETURN(const Tables tables, TakeTables(&bytes));
  if (!bytes.empty()) return Malformed("there are more than there should be");
  Manifest manifest;
  manifest.tensors.resize(tables.lists[0].size());
  manifest.source.resize(tables.lists[1].size());
  manifest.destination.resize(tables.lists[2].size());
  manifest.topology.source.resize(tables.lists[3].size());
  manifest.topology.destination.resize(tables.lists[4].size());
  manifest.ignore.resize(tables.lists[5].size());
  manifest.coupled.resize(tables.lists[6].size());
  uint64_t pieces = tables.lists[7].size();  // those that no buffer has yet
  std::vector<size_t> rows(tables.kinds.size(), 0), entries(kLists, 0);
  bool good = true;
  EachEntry(manifest, [&](size_t list, auto& entry) {
    if (!good) return;
    const int64_t kind = tables.lists[list][entries[list]++];
    Reader reader(tables.kinds[kind], rows[kind]++, &pieces);
    const bool of_this_list = reader.Small() == list;
    Visit(reader, entry);
    good = of_this_list && reader.Done();
  });
  if (!good || pieces > 0) return Malformed("an entry does not fit its kind");
  return manifest;
}

}  // namespace headrace
