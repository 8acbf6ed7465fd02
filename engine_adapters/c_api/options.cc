#include "engine_adapters/c_api/options.h"

#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "planner/plan.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

// Walks one object. The first error is kept and readers leave their target alone after it, so that each reader of
// options stays a straight line; Finish() gives the error, or names a field that nobody asked for.
class Fields {
 public:
  Fields(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json_.is_object()) Refuse("", "is not a JSON object");
  }

  bool Has(const char* key) const { return json_.is_object() && json_.contains(key); }

  void Read(const char* key, std::string* out) {
    const Json* j = Find(key);
    if (j == nullptr) return;
    if (!j->is_string()) return Refuse(key, "is not a text");
    *out = j->get<std::string>();
  }
  template <typename Integer>
  void ReadInteger(const char* key, Index least, Index most, Integer* out) {
    const Json* j = Find(key);
    if (j == nullptr) return;
    if (!IsIn(*j, least, most)) return Refuse(key, absl::StrCat("is not an integer from ", least, " to ", most));
    *out = static_cast<Integer>(j->get<Index>());
  }
  void Read(const char* key, uint64_t* out) {
    const Json* j = Find(key);
    if (j == nullptr) return;
    if (!j->is_number_unsigned()) return Refuse(key, "is not a natural number");
    *out = j->get<uint64_t>();
  }
  void Read(const char* key, bool* out) {
    const Json* j = Find(key);
    if (j == nullptr) return;
    if (!j->is_boolean()) return Refuse(key, "is not true or false");
    *out = j->get<bool>();
  }
  // Seconds, > 0, or >= 0.
  void Read(const char* key, absl::Duration* out, bool may_be_zero = false) {
    const Json* j = Find(key);
    if (j == nullptr) return;
    const double seconds = j->is_number() ? j->get<double>() : -1;
    if (!(seconds > 0 || (may_be_zero && seconds == 0)) || seconds > 1e9) {
      return Refuse(key, absl::StrCat("is not a number of seconds ", may_be_zero ? "from" : "above", " 0 ",
                                      may_be_zero ? "to" : "and up to", " 1e9"));
    }
    *out = absl::Seconds(seconds);
  }
  void ReadNs(const char* key, int64_t* out, bool may_be_zero = false) {
    absl::Duration duration = absl::Nanoseconds(*out);
    if (Has(key)) Read(key, &duration, may_be_zero);
    *out = absl::ToInt64Nanoseconds(duration);
  }
  void ReadList(const char* key, std::vector<std::string>* out) {
    const Json* j = Find(key);
    if (j == nullptr) return;
    if (!j->is_array()) return Refuse(key, "is not a list");
    for (const Json& e : *j) {
      if (!e.is_string()) return Refuse(key, "has an element that is not a text");
      out->push_back(e.get<std::string>());
    }
  }
  template <typename Integer>
  void ReadList(const char* key, Index least, Index most, std::vector<Integer>* out) {
    const Json* j = Find(key);
    if (j == nullptr) return;
    if (!j->is_array()) return Refuse(key, "is not a list");
    for (const Json& e : *j) {
      if (!IsIn(e, least, most)) return Refuse(key, absl::StrCat("has an element that is not in ", least, "..", most));
      out->push_back(static_cast<Integer>(e.get<Index>()));
    }
  }
  const Json* Find(const char* key) {
    if (!error_.ok()) return nullptr;
    known_.insert(key);
    auto it = json_.find(key);
    if (it != json_.end()) return &*it;
    Refuse(key, "is missing");
    return nullptr;
  }
  void Refuse(const std::string& key, absl::string_view how) {
    if (!error_.ok()) return;
    std::string place = path_.empty() ? key : key.empty() ? path_ : absl::StrCat(path_, ".", key);
    if (place.empty()) place = "the document";
    error_ = Error(ErrorCode::kInvalidOption, absl::StrCat(place, " ", how));
  }
  void Refuse(const absl::Status& status) {
    if (error_.ok()) error_ = status;
  }

  absl::Status Finish() {
    if (!error_.ok()) return error_;
    for (const auto& [key, value] : json_.items()) {
      if (!known_.contains(key)) Refuse(key, "is not an option");
    }
    return error_;
  }

 private:
  static bool IsIn(const Json& j, Index least, Index most) {
    if (j.is_number_unsigned() && j.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<Index>::max())) {
      return false;
    }
    return j.is_number_integer() && j.get<Index>() >= least && j.get<Index>() <= most;
  }

  const Json& json_;
  const std::string path_;
  std::set<std::string> known_;
  absl::Status error_;
};

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr Index kMaxIndex = std::numeric_limits<Index>::max();

absl::StatusOr<Json> Parse(const char* text, absl::string_view what) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Error(ErrorCode::kInvalidOption, absl::StrCat("the ", what, " are not JSON"));
  return json;
}

void ReadTimeouts(Fields* fields, SessionTimeouts* out) {
  if (!fields->Has("timeouts")) return;
  const Json* j = fields->Find("timeouts");
  if (j == nullptr) return;
  Fields timeouts(*j, "timeouts");
  timeouts.ReadNs("heartbeat_period", &out->heartbeat_period_ns);
  timeouts.ReadNs("heartbeat_timeout", &out->heartbeat_timeout_ns);
  timeouts.ReadNs("join", &out->join_ns);
  timeouts.ReadNs("plan", &out->plan_ns);
  timeouts.ReadNs("decision", &out->decision_ns);
  timeouts.ReadNs("commit", &out->commit_ns);
  timeouts.ReadNs("rejoin", &out->rejoin_ns, /*may_be_zero=*/true);
  fields->Refuse(timeouts.Finish());
}

std::optional<ServerTls> ReadServerTls(Fields* fields) {
  if (!fields->Has("tls")) return std::nullopt;
  const Json* j = fields->Find("tls");
  if (j == nullptr) return std::nullopt;
  ServerTls out;
  Fields tls(*j, "tls");
  tls.Read("certificate", &out.certificate_file);
  tls.Read("key", &out.key_file);
  if (tls.Has("client_ca")) tls.Read("client_ca", &out.client_ca_file);
  fields->Refuse(tls.Finish());
  return out;
}

std::optional<ClientTls> ReadClientTls(Fields* fields) {
  if (!fields->Has("tls")) return std::nullopt;
  const Json* j = fields->Find("tls");
  if (j == nullptr) return std::nullopt;
  ClientTls out;
  Fields tls(*j, "tls");
  tls.Read("ca", &out.ca_file);
  if (tls.Has("certificate")) tls.Read("certificate", &out.certificate_file);
  if (tls.Has("key")) tls.Read("key", &out.key_file);
  if (tls.Has("server_name")) tls.Read("server_name", &out.server_name);
  fields->Refuse(tls.Finish());
  return out;
}

std::string HostName() {
  char name[256] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// What publishers and receivers share.
template <typename Options>
void ReadMember(Fields* fields, Options* options, std::string* transport, TransportOptions* transport_options) {
  JobOptions& job = options->job;
  fields->Read("job", &job.job);
  fields->Read("token", &job.token);
  fields->Read("coordinator", &job.coordinator);
  fields->Read("incarnation", &job.incarnation);
  if (fields->Has("connect_timeout")) fields->Read("connect_timeout", &job.connect_timeout);
  ReadTimeouts(fields, &job.timeouts);
  job.tls = ReadClientTls(fields);
  if (fields->Has("trust_network")) fields->Read("trust_network", &job.trust_network);
  job.host = HostName();
  fields->Read("transport", transport);
  if (fields->Has("devices")) fields->ReadList("devices", &transport_options->devices);
  if (fields->Has("gpu")) fields->ReadInteger("gpu", 0, kMaxInt, &options->gpu.emplace());
  transport_options->gpu = options->gpu;
  if (fields->Has("chunk_bytes")) fields->ReadInteger("chunk_bytes", 1, kMaxIndex, &options->chunk_bytes);
  if (fields->Has("staging_bytes")) fields->ReadInteger("staging_bytes", 1, kMaxIndex, &options->staging_bytes);
}

// "host:port", an IPv6 host in brackets.
void ReadListen(Fields* fields, ControlServerOptions* server) {
  std::string listen;
  fields->Read("listen", &listen);
  const size_t colon = listen.rfind(':');
  server->host = listen.substr(0, colon);
  if (server->host.size() > 2 && server->host.front() == '[' && server->host.back() == ']') {
    server->host = server->host.substr(1, server->host.size() - 2);
  }
  if (colon == std::string::npos || server->host.empty() ||
      !absl::SimpleAtoi(listen.substr(colon + 1), &server->port) || server->port < 0 || server->port > 65535) {
    fields->Refuse("listen", "is not \"host:port\" with a port from 0 to 65535");
  }
}

}  // namespace

absl::StatusOr<CoordinatorSetup> ReadCoordinatorOptions(const char* json) {
  HR_ASSIGN_OR_RETURN(const Json document, Parse(json, "options"));
  Fields fields(document, "");
  CoordinatorSetup setup;
  fields.Read("job", &setup.coordinator.job);
  fields.Read("token", &setup.server.token);
  fields.Read("incarnation", &setup.coordinator.incarnation);
  if (setup.coordinator.incarnation.empty()) fields.Refuse("incarnation", "is empty");
  fields.ReadInteger("publishers", 1, kMaxInt, &setup.coordinator.publishers);
  fields.ReadList("workers", 1, kMaxInt, &setup.coordinator.workers);
  if (fields.Has("policy")) {
    fields.Read("policy", &setup.coordinator.policy);
    if (!ParsePolicy(setup.coordinator.policy).ok()) fields.Refuse("policy", "is not \"auto\" or \"hybrid\"");
  }
  ReadListen(&fields, &setup.server);
  setup.server.tls = ReadServerTls(&fields);
  if (fields.Has("trust_network")) fields.Read("trust_network", &setup.server.trust_network);
  ReadTimeouts(&fields, &setup.coordinator.timeouts);
  HR_RETURN_IF_ERROR(fields.Finish());
  return setup;
}

absl::StatusOr<PublisherSetup> ReadPublisherOptions(const char* json) {
  HR_ASSIGN_OR_RETURN(const Json document, Parse(json, "options"));
  Fields fields(document, "");
  PublisherSetup setup;
  ReadMember(&fields, &setup.publisher, &setup.transport, &setup.transport_options);
  fields.ReadInteger("rank", 0, kMaxInt, &setup.publisher.rank);
  std::string publishing = "snapshot";
  if (fields.Has("publishing")) fields.Read("publishing", &publishing);
  if (publishing == "hold") {
    setup.publisher.publishing = Publishing::kHold;
  } else if (publishing != "snapshot") {
    fields.Refuse("publishing", "is not \"snapshot\" or \"hold\"");
  }
  HR_RETURN_IF_ERROR(fields.Finish());
  return setup;
}

absl::StatusOr<ReceiverSetup> ReadReceiverOptions(const char* json) {
  HR_ASSIGN_OR_RETURN(const Json document, Parse(json, "options"));
  Fields fields(document, "");
  ReceiverSetup setup;
  ReceiverOptions& options = setup.receiver;
  ReadMember(&fields, &options, &setup.transport, &setup.transport_options);
  fields.ReadInteger("engine", 0, kMaxInt, &options.engine);
  fields.ReadInteger("worker", 0, kMaxInt, &options.worker);
  if (fields.Has("workers")) fields.ReadInteger("workers", 1, kMaxInt, &options.workers);
  std::string shadow;
  fields.Read("shadow", &shadow);
  if (shadow == "off") {
    options.shadow = Shadow::kOff;
  } else if (shadow == "device") {
    options.shadow = Shadow::kDevice;
  } else if (shadow != "host") {
    fields.Refuse("shadow", "is not \"host\", \"device\" or \"off\"");
  }
  if (fields.Has("standby")) fields.Read("standby", &setup.standby);
  if (fields.Has("transfer_timeout")) fields.Read("transfer_timeout", &options.transfer_timeout);
  if (fields.Has("carried")) {
    if (const Json* j = fields.Find("carried")) {
      Fields carried(*j, "carried");
      carried.Read("committed_generation", &options.carried.committed_generation);
      carried.Read("committed_incarnation", &options.carried.committed_incarnation);
      carried.Read("poisoned", &options.carried.poisoned);
      fields.Refuse(carried.Finish());
    }
  }
  HR_RETURN_IF_ERROR(fields.Finish());
  return setup;
}

absl::StatusOr<std::map<std::string, const std::byte*>> ReadSourceMemory(const char* json, const void* const* addresses,
                                                                         size_t count) {
  HR_ASSIGN_OR_RETURN(const Json document, Parse(json, "names of the memory"));
  if (!document.is_array() || document.size() != count) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("the memory is not a list of ", count, " names"));
  }
  std::map<std::string, const std::byte*> memory;
  for (size_t i = 0; i < count; ++i) {
    if (!document[i].is_string() ||
        !memory.emplace(document[i].get<std::string>(), static_cast<const std::byte*>(addresses[i])).second) {
      return Error(ErrorCode::kInvalidOption, absl::StrCat("memory[", i, "] is no name, or stands there twice"));
    }
  }
  return memory;
}

absl::StatusOr<std::map<std::string, BufferMemory>> ReadLiveMemory(const char* json, void* const* addresses,
                                                                   size_t count) {
  HR_ASSIGN_OR_RETURN(const Json document, Parse(json, "buffers of the memory"));
  if (!document.is_array() || document.size() != count) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("the memory is not a list of ", count, " buffers"));
  }
  std::map<std::string, BufferMemory> memory;
  for (size_t i = 0; i < count; ++i) {
    Fields fields(document[i], absl::StrCat("memory[", i, "]"));
    std::string name;
    BufferMemory buffer;
    buffer.data = static_cast<std::byte*>(addresses[i]);
    fields.Read("name", &name);
    fields.ReadList("shape", 0, kMaxIndex, &buffer.shape);
    fields.ReadList("strides", 0, kMaxIndex, &buffer.strides);
    if (fields.Has("live")) fields.Read("live", &buffer.live);
    HR_RETURN_IF_ERROR(fields.Finish());
    if (!memory.emplace(name, std::move(buffer)).second) {
      return Error(ErrorCode::kInvalidOption, absl::StrCat("memory[", i, "].name \"", name, "\" stands there twice"));
    }
  }
  return memory;
}

absl::StatusOr<absl::Time> DeadlineAfter(double seconds) {
  if (!(seconds >= 0)) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("a timeout of ", seconds, " seconds is not 0 or more"));
  }
  return absl::Now() + absl::Seconds(seconds);
}

}  // namespace headrace
