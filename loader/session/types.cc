#include "loader/session/types.h"

#include "absl/strings/str_cat.h"

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

std::string BodyName(const proto::Envelope& message) {
  if (message.body_case() == proto::Envelope::BODY_NOT_SET) return "no body";
  return proto::Envelope::descriptor()->FindFieldByNumber(message.body_case())->name();
}

}  // namespace headrace
