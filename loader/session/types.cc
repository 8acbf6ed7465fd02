#include "loader/session/types.h"

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

proto::MemberId MemberKey::ToProto() const {
  proto::MemberId id;
  id.set_role(role);
  id.set_engine(engine);
  id.set_rank(rank);
  return id;
}

std::string NameOf(const MemberKey& member) {
  switch (member.role) {
    case proto::COORDINATOR:
      return "coordinator";
    case proto::PUBLISHER:
      if (member.is_standby()) return absl::StrCat(NameOf(member.worker_of_standby()), " as a source");
      return absl::StrCat("publisher rank ", member.rank);
    case proto::RECEIVER:
      return absl::StrCat("engine ", member.engine, " worker ", member.rank);
    default:
      return absl::StrCat("member of unknown role ", static_cast<int>(member.role));
  }
}

std::string NameOf(const MemberKey& member, const std::string& host, int64_t pid) {
  return absl::StrCat(NameOf(member), " (host ", host, ", pid ", pid, ")");
}

proto::Fault ToFault(const absl::Status& status) {
  proto::Fault fault;
  fault.set_code(std::string(CodeOf(status)));
  fault.set_message(std::string(status.message()));
  const ErrorSubject subject = SubjectOf(status);
  fault.set_tensor(subject.tensor);
  fault.set_buffer(subject.buffer);
  if (subject.rank) fault.set_rank(*subject.rank);
  fault.set_peer(subject.peer);
  return fault;
}

absl::Status FromFault(const proto::Fault& fault) {
  ErrorSubject subject{fault.tensor(), fault.buffer(), std::nullopt, fault.peer()};
  if (fault.has_rank()) subject.rank = fault.rank();
  return About(ErrorFromName(fault.code(), fault.message()), subject);
}

AnnouncedEffect AnnouncedOf(const proto::Announced& announced) {
  AnnouncedEffect effect{announced.generation()};
  for (const proto::Announced::Slot& of : announced.slots()) effect.slots[of.publisher()] = of.slot();
  for (const proto::MemberId& id : announced.absent()) effect.absent.push_back(MemberKey::From(id));
  return effect;
}

std::string BodyName(const proto::Envelope& message) {
  if (message.body_case() == proto::Envelope::BODY_NOT_SET) return "no body";
  return proto::Envelope::descriptor()->FindFieldByNumber(message.body_case())->name();
}

}  // namespace headrace
