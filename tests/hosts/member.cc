// One process of a job whose members run on different hosts: the coordinator, a publisher or a receiver, by orders on
// standard input, one JSON object a line, the first of which says who this is. Each answer is a line of JSON: "code" is
// the status' code ("" is OK), "message" what it says.
//
// A receiver looks at its live memory after everything it does: "holds" is the generation that all of it holds (0: none
// has come yet), or "torn" with "difference". What it must hold comes from loader/testing/side_memory, by element
// loops.

#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "loader/control/coordinator_service.h"
#include "loader/publisher.h"
#include "loader/receiver.h"
#include "loader/testing/side_memory.h"
#include "loader/transport/ucx/ucx.h"
#include "planner/manifest_json.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;
using testing::PaintDestination;
using testing::PaintSource;
using testing::SideMemory;

// Far beyond what a network that works takes.
absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

bool Next(Json* order) {
  std::string line;
  if (!std::getline(std::cin, line)) return false;
  *order = Json::parse(line);
  return true;
}

void Answer(const absl::Status& status, Json answer = Json::object()) {
  answer["code"] = std::string(CodeOf(status));
  answer["message"] = std::string(status.message());
  std::cout << answer.dump() << std::endl;
}

int RunCoordinator(const Json& order) {
  CoordinatorOptions coordinator;
  coordinator.job = "hosts";
  coordinator.incarnation = "run-1";
  coordinator.publishers = order["publishers"];
  coordinator.workers = order["workers"].get<std::vector<int>>();
  ControlServerOptions server;
  server.host = order["host"];
  server.token = order["token"];
  if (order.contains("certificate")) {
    server.tls = {.certificate_file = order["certificate"],
                  .key_file = order["key"],
                  .client_ca_file = order.value("client_ca", "")};
  }
  server.trust_network = order.value("trust_network", false);
  const auto service = CoordinatorService::Start(coordinator, server);
  Answer(service.status(), {{"address", service.ok() ? (*service)->address() : ""}});
  for (Json next; service.ok() && Next(&next);) {
    (*service)->Stop();
    Answer(absl::OkStatus());
  }
  return 0;
}

JobOptions JobOf(const Json& order) {
  JobOptions job;
  job.job = "hosts";
  job.token = order["token"];
  job.coordinator = order["coordinator"];
  job.host = order["host"];
  job.connect_timeout = absl::Seconds(30);
  if (order.contains("ca")) {
    job.tls = {.ca_file = order["ca"],
               .certificate_file = order.value("certificate", ""),
               .key_file = order.value("key", ""),
               .server_name = order.value("server_name", "")};
  }
  job.trust_network = order.value("trust_network", false);
  return job;
}

// The manifest with the buffers of one side's rank.
Manifest SourcePart(const Manifest& whole, int64_t rank) {
  Manifest part;
  part.tensors = whole.tensors;
  for (const Buffer& b : whole.source)
    if (b.rank == rank) part.source.push_back(b);
  for (const Placement& p : whole.topology.source)
    if (p.rank == rank) part.topology.source.push_back(p);
  return part;
}
Manifest DestinationPart(const Manifest& whole, int64_t rank) {
  Manifest part;
  for (const Buffer& b : whole.destination)
    if (b.rank == rank) part.destination.push_back(b);
  for (const Placement& p : whole.topology.destination)
    if (p.rank == rank) part.topology.destination.push_back(p);
  return part;
}

absl::Status RunPublisher(const Json& order, const Manifest& manifest, std::unique_ptr<Transport> transport) {
  const Manifest part = SourcePart(manifest, order["rank"]);
  SideMemory source(part.source);
  std::map<std::string, const std::byte*> memory;
  for (const Buffer& b : part.source) memory[b.name] = source.First(b);
  PublisherOptions options;
  options.job = JobOf(order);
  options.rank = order["rank"];
  HR_ASSIGN_OR_RETURN(const auto publisher, Publisher::Join(options, part, memory, std::move(transport)));
  Answer(absl::OkStatus());
  for (Json next; Next(&next);) {
    const uint64_t generation = next["generation"];
    PaintSource(part, generation, &source);
    absl::Status status = publisher->Publish(generation, Soon());
    Answer(status);
    if (status.ok()) status = publisher->AwaitCommit(generation, Soon());
    Answer(status);
  }
  return publisher->Close(Soon());
}

absl::Status RunReceiver(const Json& order, const Manifest& manifest, std::unique_ptr<Transport> transport) {
  const int64_t rank = order["rank"];
  Manifest part = DestinationPart(manifest, rank);
  SideMemory live(part.destination);
  SideMemory wanted(part.destination);
  std::map<std::string, BufferMemory> memory;
  for (const Buffer& b : part.destination) memory[b.name] = {live.First(b), b.shape, b.strides};
  ReceiverOptions options;
  options.job = JobOf(order);
  options.engine = order["engine"];
  options.worker = order["worker"];
  options.shadow = order["shadow"].get<bool>() ? Shadow::kHost : Shadow::kOff;
  options.transfer_timeout = absl::Seconds(order["transfer_seconds"].get<int>());
  HR_ASSIGN_OR_RETURN(const auto receiver, Receiver::Join(options, part, memory, std::move(transport)));
  Answer(absl::OkStatus());
  uint64_t held = 0;
  for (Json next; Next(&next);) {
    absl::StatusOr<uint64_t> generation = receiver->NextGeneration(Soon());
    absl::Status status = generation.status();
    if (status.ok()) status = receiver->Stage(*generation, memory);
    if (status.ok()) status = receiver->Commit(*generation);
    if (status.ok()) {
      held = *generation;
      PaintDestination(manifest, rank, held, &wanted);
    }
    const std::string difference = live.Difference(wanted);
    Json answer = {{"difference", difference}};
    answer["holds"] = difference.empty() ? Json(held) : Json("torn");
    answer["serving"] = receiver->serving() ? Json(*receiver->serving()) : Json();
    Answer(status, answer);
  }
  return receiver->Close(Soon());
}

int Run() {
  Json order;
  if (!Next(&order)) return 1;
  if (order["role"] == "coordinator") return RunCoordinator(order);
  const auto run = [&]() -> absl::Status {
    HR_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(order["manifest"].dump()));
    UcxOptions ucx;
    ucx.devices = order["devices"];
    HR_ASSIGN_OR_RETURN(auto transport, NewUcxTransport(ucx));
    return order["role"] == "publisher" ? RunPublisher(order, manifest, std::move(transport))
                                        : RunReceiver(order, manifest, std::move(transport));
  };
  Answer(run());
  return 0;
}

}  // namespace
}  // namespace headrace

int main() { return headrace::Run(); }
