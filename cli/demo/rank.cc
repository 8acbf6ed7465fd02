#include "cli/demo/rank.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine_adapters/safetensors/llama_config.h"
#include "planner/status.h"

namespace headrace {

double MonotonicSeconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

absl::StatusOr<std::optional<DemoJson>> RankPipe::Next(absl::Duration patience) {
  while (true) {
    if (size_t end = partial_.find('\n'); end != std::string::npos) {
      DemoJson order = DemoJson::parse(partial_.substr(0, end), nullptr, /*allow_exceptions=*/false);
      partial_.erase(0, end + 1);
      if (order.is_discarded()) return Error(ErrorCode::kMalformed, "an order that is not JSON");
      return order;
    }
    pollfd fd = {STDIN_FILENO, POLLIN, 0};
    if (poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) <= 0) return std::nullopt;
    std::array<char, 65536> buffer;
    const ssize_t n = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n <= 0) return Error(ErrorCode::kAborted, "the demo's launcher is gone");
    partial_.append(buffer.data(), static_cast<size_t>(n));
  }
}

void RankPipe::Report(DemoJson event) {
  event["at"] = MonotonicSeconds();
  const std::string line = event.dump(-1, ' ', false, DemoJson::error_handler_t::replace) + "\n";
  std::lock_guard<std::mutex> lock(mutex_);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

int RankPipe::ReportError(const absl::Status& status) {
  Report({{"event", "error"}, {"code", std::string(CodeOf(status))}, {"message", std::string(status.message())}});
  return 1;
}

absl::StatusOr<RankOrders> ReadOrders(RankPipe* pipe) {
  RankOrders orders;
  HR_ASSIGN_OR_RETURN(std::optional<DemoJson> raw, pipe->Next(absl::Seconds(60)));
  if (!raw || !raw->contains("model")) {
    return Error(ErrorCode::kInvalidOption, "this command is started by \"headrace demo\"");
  }
  orders.raw = *std::move(raw);
  HR_ASSIGN_OR_RETURN(orders.checkpoint, Checkpoint::Open(orders.raw["model"].get<std::string>()));
  HR_ASSIGN_OR_RETURN(const LlamaConfig config, ReadLlamaConfig(*orders.checkpoint));
  HR_ASSIGN_OR_RETURN(const TrainerKind kind, TrainerKindFromName(orders.raw["scenario"].get<std::string>()));
  HR_ASSIGN_OR_RETURN(orders.scenario, MakeScenario(kind, config));
  orders.transport = orders.raw["transport"];
  orders.gpu = orders.raw["gpu"];
  HR_ASSIGN_OR_RETURN(orders.shadow, ChooseShadow(orders.raw["shadow"], orders.transport, orders.gpu));
  orders.job.job = orders.raw["job"];
  orders.job.token = orders.raw["token"];
  orders.job.coordinator = orders.raw["coordinator"];
  orders.job.host = "localhost";
  return orders;
}

}  // namespace headrace
