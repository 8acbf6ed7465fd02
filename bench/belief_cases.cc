#include "bench/belief_cases.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/refit_model.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

Buffer PartOf(const TensorSpec& tensor, Index ranks, int axis, Index rank) {
  Buffer b;
  b.rank = rank;
  b.name = tensor.name;
  b.shape = tensor.shape;
  b.shape[axis] /= ranks;
  b.strides = RowMajorStrides(b.shape);
  Piece p;
  p.tensor = tensor.name;
  p.shape = b.shape;
  p.tensor_offset = p.buffer_offset = {0, 0};
  p.tensor_offset[axis] = rank * b.shape[axis];
  b.pieces.push_back(std::move(p));
  return b;
}

}  // namespace

absl::StatusOr<Manifest> MatricesManifest(const Matrices& m) {
  Manifest manifest;
  for (Index i = 0; i < m.count; ++i) manifest.tensors.push_back({absl::StrCat("w", i), {m.rows, m.columns}});
  const auto side = [&](Index ranks, int axis, std::vector<Buffer>* buffers,
                        std::vector<Placement>* placed) -> absl::Status {
    if ((axis == 0 ? m.rows : m.columns) % ranks != 0) {
      return Error(ErrorCode::kShapeMismatch, absl::StrCat(ranks, " ranks do not divide axis ", axis));
    }
    for (Index rank = 0; rank < ranks; ++rank) {
      for (const TensorSpec& t : manifest.tensors) buffers->push_back(PartOf(t, ranks, axis, rank));
      placed->push_back({rank, "", "", ""});
    }
    return absl::OkStatus();
  };
  HR_RETURN_IF_ERROR(side(m.trainers, m.trainer_axis, &manifest.source, &manifest.topology.source));
  HR_RETURN_IF_ERROR(side(m.workers, m.worker_axis, &manifest.destination, &manifest.topology.destination));
  return WithEngines(std::move(manifest), m.engines);
}

Manifest WithEngines(Manifest manifest, Index engines) {
  const std::vector<Buffer> buffers = std::exchange(manifest.destination, {});
  const std::vector<Placement> workers = std::exchange(manifest.topology.destination, {});
  for (Index e = 0; e < engines; ++e) {
    const Index first = e * static_cast<Index>(workers.size());
    for (Buffer b : buffers) {
      b.rank += first;
      manifest.destination.push_back(std::move(b));
    }
    for (Placement p : workers) {
      p.rank += first;
      p.engine = absl::StrCat("e", e);
      manifest.topology.destination.push_back(std::move(p));
    }
  }
  return manifest;
}

absl::StatusOr<std::vector<BeliefCase>> BeliefCases() {
  std::vector<BeliefCase> cases;
  const RefitOptions in_place{.shadow = false, .transport = "host"}, shadow{.shadow = true, .transport = "host"};
  const RefitOptions ucx{.shadow = false, .transport = "ucx"}, ucx_shadow{.shadow = true, .transport = "ucx"};
  const auto moe = [&](const std::string& name, Index trainers, Index workers, Index engines,
                       const RefitOptions& options) -> absl::Status {
    RefitModel model;
    model.layers = 1;
    model.trainers = trainers;
    model.workers = workers;
    HR_ASSIGN_OR_RETURN(Manifest manifest, RefitManifest(model));
    cases.push_back({name, "moe", WithEngines(std::move(manifest), engines), options});
    return absl::OkStatus();
  };
  const auto matrices = [&](const std::string& name, const std::string& weights, const Matrices& m,
                            const RefitOptions& options) -> absl::Status {
    HR_ASSIGN_OR_RETURN(Manifest manifest, MatricesManifest(m));
    cases.push_back({name, weights, std::move(manifest), options});
    return absl::OkStatus();
  };
  HR_RETURN_IF_ERROR(moe("moe 4 to 2", 4, 2, 1, in_place));
  HR_RETURN_IF_ERROR(moe("moe 4 to 2, shadow", 4, 2, 1, shadow));
  HR_RETURN_IF_ERROR(moe("moe 4 to 2, ucx", 4, 2, 1, ucx));
  HR_RETURN_IF_ERROR(moe("moe 2 to 4", 2, 4, 1, in_place));
  HR_RETURN_IF_ERROR(moe("moe 8 to 1, ucx", 8, 1, 1, ucx));
  HR_RETURN_IF_ERROR(moe("moe 4 to 2 engines of 2", 4, 2, 2, in_place));

  Matrices wide{.count = 16, .rows = 4096, .columns = 4096};
  HR_RETURN_IF_ERROR(matrices("wide rows 2 to 2", "wide", wide, in_place));
  HR_RETURN_IF_ERROR(matrices("wide rows 2 to 2, ucx", "wide", wide, ucx));
  wide.worker_axis = 1;
  wide.trainers = 4;
  HR_RETURN_IF_ERROR(matrices("wide rows 4 to columns 2", "wide", wide, in_place));
  wide.trainer_axis = 1;
  HR_RETURN_IF_ERROR(matrices("wide columns 4 to columns 2, shadow", "wide", wide, shadow));
  wide.trainers = wide.workers = 1;
  HR_RETURN_IF_ERROR(matrices("wide 1 to 1", "wide", wide, in_place));
  wide.engines = 2;
  HR_RETURN_IF_ERROR(matrices("wide 1 to 2 engines of 1, ucx", "wide", wide, ucx));

  Matrices narrow{.count = 6, .rows = 524288, .columns = 64};
  HR_RETURN_IF_ERROR(matrices("narrow rows 2 to 2", "narrow", narrow, in_place));
  narrow.worker_axis = 1;
  HR_RETURN_IF_ERROR(matrices("narrow rows 2 to columns 2", "narrow", narrow, in_place));
  HR_RETURN_IF_ERROR(matrices("narrow rows 2 to columns 2, shadow", "narrow", narrow, shadow));
  HR_RETURN_IF_ERROR(matrices("narrow rows 2 to columns 2, ucx", "narrow", narrow, ucx));

  const Matrices small{.count = 2, .rows = 6144, .columns = 4096, .trainers = 3};
  HR_RETURN_IF_ERROR(matrices("small rows 3 to 2", "small", small, in_place));
  HR_RETURN_IF_ERROR(matrices("small rows 3 to 2, ucx and shadow", "small", small, ucx_shadow));
  return cases;
}

absl::StatusOr<BeliefCase> FindBeliefCase(const std::string& name) {
  HR_ASSIGN_OR_RETURN(std::vector<BeliefCase> cases, BeliefCases());
  for (BeliefCase& c : cases) {
    if (c.name == name) return std::move(c);
  }
  return Error(ErrorCode::kInvalidOption, absl::StrCat("no case \"", name, "\"; belief_bench --list names them"));
}

}  // namespace headrace::bench
