#include "loader/remote_copy.h"

#include <algorithm>
#include <span>

#include "kernels/sum.h"
#include "loader/lowering.h"
#include "planner/status.h"

namespace headrace {
namespace {

using kernels::StridedCopy;

// The source bytes of a box: [low, low + span) from its first byte.
struct Extent {
  int64_t low = 0;
  int64_t span = 0;
};

Extent SourceExtent(const StridedCopy& box) {
  Extent out{0, box.run_bytes};
  for (int i = 0; i < box.rank; ++i) {
    const int64_t reach = (box.extent[i] - 1) * box.src_stride[i];
    out.low += std::min<int64_t>(reach, 0);
    out.span += std::abs(reach);
  }
  return out;
}

// Moves a box on by `steps` of loop `i`; returns how far that is in the source.
int64_t Advance(StridedCopy* box, int i, int64_t steps) {
  box->dst += steps * box->dst_stride[i];
  box->first_byte += steps * box->pos_stride[i];
  return steps * box->src_stride[i];
}

}  // namespace

struct RemoteCopier::Job {
  RemoteMemory& source;
  absl::Time deadline;
};

RemoteCopier::RemoteCopier(int64_t bounce_bytes)
    : bounce_bytes_(bounce_bytes), bounce_(static_cast<size_t>(bounce_bytes)) {}

absl::StatusOr<uint64_t> RemoteCopier::Run(const Copy& copy, ReadForm form, RemoteMemory& source, int64_t source_first,
                                           std::byte* destination, absl::Time deadline) {
  const Job job{source, deadline};
  const StridedCopy box = Lower(copy, nullptr, destination);
  const int64_t source_at = source_first + copy.source_offset;
  sum_ = 0;
  if (form == ReadForm::kSpans) {
    HR_RETURN_IF_ERROR(RunSpans(job, box, source_at));
  } else {
    HR_RETURN_IF_ERROR(RunRuns(job, box, source_at));
  }
  return sum_;
}

// Cuts the box until its source span fits into the buffer: always along the loop that reaches furthest.
absl::Status RemoteCopier::RunSpans(const Job& job, StridedCopy box, int64_t source_at) {
  if (box.rank == 0) return RunDirect(job, box, source_at);
  const Extent extent = SourceExtent(box);
  if (extent.span <= bounce_bytes_) return RunSpan(job, box, source_at, extent.low, extent.span);
  int widest = -1;
  int64_t widest_reach = 0;
  for (int i = 0; i < box.rank; ++i) {
    const int64_t reach = (box.extent[i] - 1) * std::abs(box.src_stride[i]);
    if (reach > widest_reach) widest = i, widest_reach = reach;
  }
  if (widest < 0) {
    // One run, longer than the buffer.
    box.rank = 0;
    return RunDirect(job, box, source_at);
  }
  const int64_t rest = extent.span - widest_reach;  // of one step
  const int64_t fitting = 1 + std::max<int64_t>(0, bounce_bytes_ - rest) / std::abs(box.src_stride[widest]);
  for (int64_t step = 0; step < box.extent[widest]; step += fitting) {
    StridedCopy part = box;
    part.extent[widest] = std::min(fitting, box.extent[widest] - step);
    const int64_t moved = Advance(&part, widest, step);
    HR_RETURN_IF_ERROR(RunSpans(job, part, source_at + moved));
  }
  return absl::OkStatus();
}

absl::Status RemoteCopier::RunDirect(const Job& job, const StridedCopy& run, int64_t source_at) {
  for (int64_t at = 0; at < run.run_bytes; at += bounce_bytes_) {
    const ReadRange range{source_at + at, std::min(bounce_bytes_, run.run_bytes - at)};
    HR_RETURN_IF_ERROR(job.source.Read({&range, 1}, run.dst + at, job.deadline));
    sum_ += kernels::SumRun(run.tensor_key, run.first_byte + at, run.dst + at, range.bytes);
  }
  return absl::OkStatus();
}

absl::Status RemoteCopier::RunSpan(const Job& job, StridedCopy box, int64_t source_at, int64_t low, int64_t span) {
  const ReadRange range{source_at + low, span};
  HR_RETURN_IF_ERROR(job.source.Read({&range, 1}, bounce_.data(), job.deadline));
  box.src = bounce_.data() - low;
  sum_ += kernels::CopyAndSum(box);
  return absl::OkStatus();
}

// Reads the runs in the box's packed order, a buffer full at a time.
absl::Status RemoteCopier::RunRuns(const Job& job, const StridedCopy& box, int64_t source_at) {
  const int64_t total = kernels::BoxBytes(box);
  int64_t index[kernels::kMaxBoxLoops] = {};
  int64_t run_at = source_at, in_run = 0;
  for (int64_t first = 0; first < total;) {
    ranges_.clear();
    int64_t bytes = 0;
    while (bytes < bounce_bytes_ && first + bytes < total) {
      const int64_t part = std::min(box.run_bytes - in_run, bounce_bytes_ - bytes);
      const int64_t from = run_at + in_run;
      if (!ranges_.empty() && ranges_.back().offset + ranges_.back().bytes == from) {
        ranges_.back().bytes += part;
      } else {
        ranges_.push_back({from, part});
      }
      bytes += part;
      in_run += part;
      if (in_run < box.run_bytes) continue;
      in_run = 0;
      for (int i = box.rank - 1; i >= 0; --i) {
        run_at += box.src_stride[i];
        if (++index[i] < box.extent[i]) break;
        run_at -= box.extent[i] * box.src_stride[i];
        index[i] = 0;
      }
    }
    HR_RETURN_IF_ERROR(job.source.Read(ranges_, bounce_.data(), job.deadline));
    sum_ += kernels::UnpackAndSum(box, first, std::span<const std::byte>(bounce_.data(), static_cast<size_t>(bytes)));
    first += bytes;
  }
  return absl::OkStatus();
}

}  // namespace headrace
