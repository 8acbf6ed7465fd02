#include "planner/intersect.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/box_index.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr size_t kMaxListed = 8;

std::string BufferName(const char* side, const Buffer& b) {
  return absl::StrCat(side, " rank ", b.rank, ", buffer \"", b.name, "\"");
}

// Distinct names for a message, in the order in which they came: as many as fit.
class NameList {
 public:
  void Add(const std::string& name) {
    if (!seen_.insert(name).second) return;
    if (listed_.size() >= kMaxNames || bytes_ + name.size() > kMaxNameBytes) return;
    bytes_ += name.size();
    listed_.push_back(name);
  }

  // "KIND A, B and 3 more"; empty where there are none.
  std::string Describe(absl::string_view kind) const {
    if (seen_.empty()) return "";
    const size_t more = seen_.size() - listed_.size();
    return absl::StrCat(kind, " ", absl::StrJoin(listed_, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : "");
  }

 private:
  static constexpr size_t kMaxNames = 300, kMaxNameBytes = 8 << 10;

  absl::flat_hash_set<std::string> seen_;
  std::vector<std::string> listed_;
  size_t bytes_ = 0;
};

// A finding of `uncovered` or `unwanted`: what is concerned, the first places, and the total.
class Missing {
 public:
  // At `place` of a tensor; box() describes the elements.
  template <typename F>
  void AddTensor(const std::string& tensor, const Buffer& buffer, const std::string& place, Index elements, F&& box) {
    if (empty_) subject_ = {.tensor = tensor, .buffer = buffer.name, .rank = buffer.rank};
    if (place != last_place_) tensors_.Add(absl::StrCat("\"", tensor, "\""));
    Add(place, elements, box);
  }

  // Of a buffer that is in no piece there.
  template <typename F>
  void AddBuffer(const Buffer& buffer, const std::string& place, Index elements, F&& box) {
    if (empty_) subject_ = {.buffer = buffer.name, .rank = buffer.rank};
    if (place != last_place_) buffers_.Add(BufferName("destination", buffer));
    Add(place, elements, box);
  }

  bool empty() const { return empty_; }

  // The first finding.
  const ErrorSubject& subject() const { return subject_; }

  // "tensors "a", "b": first PLACE BOX; also PLACE BOX; 32 elements in all".
  std::string Describe() const {
    const std::string tensors = tensors_.Describe("tensors"), buffers = buffers_.Describe("unfilled");
    return absl::StrCat(tensors, tensors.empty() || buffers.empty() ? "" : "; ", buffers, ": first ",
                        absl::StrJoin(listed_, "; also "),
                        places_ > kMaxListed ? absl::StrCat("; and ", places_ - kMaxListed, " more places") : "", "; ",
                        total_, " elements in all");
  }

 private:
  template <typename F>
  void Add(const std::string& place, Index elements, F&& box) {
    empty_ = false;
    total_ = SaturatedSum(total_, elements);
    if (place == last_place_) return;
    last_place_ = place;
    if (++places_ <= kMaxListed) listed_.push_back(absl::StrCat(place, " ", box()));
  }

  bool empty_ = true;
  ErrorSubject subject_;
  NameList tensors_, buffers_;
  Index total_ = 0;
  std::string last_place_;
  size_t places_ = 0;
  std::vector<std::string> listed_;  // each place with its first box
};

using PiecesByTensor = std::vector<std::vector<PieceRef>>;

PiecesByTensor GroupPieces(const std::vector<Buffer>& buffers,
                           const absl::flat_hash_map<absl::string_view, int>& tensors) {
  PiecesByTensor out(tensors.size());
  for (size_t b = 0; b < buffers.size(); ++b) {
    for (size_t p = 0; p < buffers[b].pieces.size(); ++p) {
      const Piece& piece = buffers[b].pieces[p];
      if (piece.kind != PieceKind::kTensor) continue;
      out[tensors.at(piece.tensor)].push_back({static_cast<int>(b), static_cast<int>(p)});
    }
  }
  return out;
}

// The shapes in which pieces count: views, and the tensor's own. Bytes of a sub-byte dtype are whole in these only.
void CollectShapes(const TensorSpec& tensor, const std::vector<Buffer>& buffers, const std::vector<PieceRef>& refs,
                   std::vector<Extents>* shapes) {
  for (const PieceRef& r : refs) {
    const auto& view = buffers[r.buffer].pieces[r.piece].view;
    const Extents& shape = view ? *view : tensor.shape;
    if (std::find(shapes->begin(), shapes->end(), shape) == shapes->end()) shapes->push_back(shape);
  }
}

absl::StatusOr<std::vector<PlacedBox>> PlaceAll(const CommonAxes& axes, const TensorSpec& tensor,
                                                const std::vector<Buffer>& buffers, const std::vector<PieceRef>& refs) {
  std::vector<PlacedBox> out;
  for (const PieceRef& r : refs) {
    HR_ASSIGN_OR_RETURN(std::vector<PlacedBox> boxes,
                        axes.Place(tensor, buffers[r.buffer], r.buffer, buffers[r.buffer].pieces[r.piece]));
    out.insert(out.end(), std::make_move_iterator(boxes.begin()), std::make_move_iterator(boxes.end()));
  }
  return out;
}

BoxIndex IndexOf(const std::vector<PlacedBox>& boxes, const Extents& strides) {
  return BoxIndex(boxes.size(), strides, [&](size_t i) -> const Box& { return boxes[i].box; });
}

// Partitions `box` by those of `candidates` that may touch it; holders are indices into `candidates`.
template <typename F>
void PartitionBy(const Box& box, const std::vector<PlacedBox>& candidates, const BoxIndex& index, F&& cell) {
  const std::vector<int> near = index.Near(box);
  std::vector<Box> boxes;
  for (int i : near) boxes.push_back(candidates[i].box);
  Partition(box, boxes, [&](const Box& part, absl::Span<const int> holders) {
    std::vector<int> mapped;
    for (int h : holders) mapped.push_back(near[h]);
    cell(part, std::move(mapped));
  });
}

// Elements of destination buffers that no piece fills.
void FindUnfilled(const Manifest& m, Missing* missing) {
  for (const Buffer& b : m.destination) {
    if (b.alias_of) continue;
    std::vector<Box> filled;
    Index elements = 0;
    for (const Piece& p : b.pieces) {
      Box box{Coords(p.buffer_offset.begin(), p.buffer_offset.end()), Coords(p.shape.begin(), p.shape.end())};
      for (size_t k = 0; k < p.axes.size(); ++k) box.extent[p.axes[k]] = p.shape[k];
      elements += Volume(box);
      filled.push_back(std::move(box));
    }
    if (elements == Volume(WholeBox(b.shape))) continue;  // pieces are disjoint
    Partition(WholeBox(b.shape), filled, [&](const Box& cell, absl::Span<const int> holders) {
      if (holders.empty())
        missing->AddBuffer(b, BufferName("destination", b) + " is in no piece at", Volume(cell),
                           [&] { return ToString(cell); });
    });
  }
}

}  // namespace

TensorPieces::TensorPieces(const Manifest& manifest) : manifest_(manifest) {
  absl::flat_hash_map<absl::string_view, int> tensors;
  for (size_t t = 0; t < manifest.tensors.size(); ++t) tensors.emplace(manifest.tensors[t].name, static_cast<int>(t));
  offered_ = GroupPieces(manifest.source, tensors);
  wanted_ = GroupPieces(manifest.destination, tensors);
}

absl::StatusOr<TensorCells> TensorPieces::Place(int t) const {
  const TensorSpec& tensor = manifest_.tensors[t];
  TensorCells cut;
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return cut;
  std::vector<Extents> shapes;
  CollectShapes(tensor, manifest_.source, offered_[t], &shapes);
  CollectShapes(tensor, manifest_.destination, wanted_[t], &shapes);
  if (shapes.empty()) return cut;
  const CommonAxes axes(shapes.front(), shapes);
  cut.axes = axes.extents();
  cut.axis_strides = axes.strides();
  HR_ASSIGN_OR_RETURN(cut.source, PlaceAll(axes, tensor, manifest_.source, offered_[t]));
  HR_ASSIGN_OR_RETURN(cut.destination, PlaceAll(axes, tensor, manifest_.destination, wanted_[t]));
  return cut;
}

absl::StatusOr<std::vector<TensorCells>> Intersect(const Manifest& manifest) {
  const absl::flat_hash_set<absl::string_view> ignored(manifest.ignore.begin(), manifest.ignore.end());
  const TensorPieces pieces(manifest);

  Missing uncovered, unwanted;
  std::vector<TensorCells> out(manifest.tensors.size());
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    const TensorSpec& tensor = manifest.tensors[t];
    TensorCells& cut = out[t];
    HR_ASSIGN_OR_RETURN(cut, pieces.Place(static_cast<int>(t)));
    const BoxIndex by_source = IndexOf(cut.source, cut.axis_strides);
    for (size_t d = 0; d < cut.destination.size(); ++d) {
      const PlacedBox& wanted_box = cut.destination[d];
      PartitionBy(wanted_box.box, cut.source, by_source, [&](const Box& part, std::vector<int> holders) {
        if (holders.empty()) {
          uncovered.AddTensor(tensor.name, manifest.destination[wanted_box.buffer],
                              absl::StrCat("tensor \"", tensor.name, "\", wanted by ",
                                           BufferName("destination", manifest.destination[wanted_box.buffer]),
                                           ", is offered by no source at"),
                              Volume(part), [&] { return DescribeBox(tensor.shape, part, cut.axis_strides); });
        } else {
          cut.cells.push_back({static_cast<int>(t), part, static_cast<int>(d), std::move(holders)});
        }
      });
    }
    if (ignored.contains(tensor.name)) continue;
    const BoxIndex by_destination = IndexOf(cut.destination, cut.axis_strides);
    for (const PlacedBox& offer : cut.source) {
      PartitionBy(offer.box, cut.destination, by_destination, [&](const Box& part, const std::vector<int>& holders) {
        if (!holders.empty()) return;
        unwanted.AddTensor(tensor.name, manifest.source[offer.buffer],
                           absl::StrCat("tensor \"", tensor.name, "\", offered by ",
                                        BufferName("source", manifest.source[offer.buffer]), ", at"),
                           Volume(part), [&] { return DescribeBox(tensor.shape, part, cut.axis_strides); });
      });
    }
  }
  FindUnfilled(manifest, &uncovered);
  if (!uncovered.empty()) {
    std::string also =
        unwanted.empty() ? "" : absl::StrCat(". Also offered and wanted by nobody, of ", unwanted.Describe());
    return About(Error(ErrorCode::kUncovered,
                       absl::StrCat("destination elements without a source, of ", uncovered.Describe(), also)),
                 uncovered.subject());
  }
  if (!unwanted.empty()) {
    return About(
        Error(ErrorCode::kUnwanted, absl::StrCat("offered, and wanted by no destination, of ", unwanted.Describe(),
                                                 ". Add a destination for it, or its name to \"ignore\"")),
        unwanted.subject());
  }
  return out;
}

}  // namespace headrace
