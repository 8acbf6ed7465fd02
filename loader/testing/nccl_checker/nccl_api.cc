// The functions of NCCL that the shared object exports.

#include <array>
#include <string>

#include "loader/testing/nccl_checker/communicator.h"
#include "loader/testing/nccl_checker/group.h"
#include "loader/testing/nccl_checker/memory.h"
#include "loader/testing/nccl_checker/rendezvous.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/stream.h"
#include "loader/testing/nccl_checker/text.h"
#include "loader/transport/nccl/nccl_abi.h"

namespace headrace::nccl_checker {
namespace {

using nccl::Result;

// The first release with NCCL_MULTI_RANK_GPU_ENABLE.
constexpr int kVersion = 23000;

// By ncclDataType_t.
constexpr std::array<int, 12> kTypeBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

thread_local std::string t_last_error;

Result CheckBuffer(const char* call, bool send, const Communicator& communicator, const void* data, uint64_t bytes) {
  if (bytes == 0) return nccl::kSuccess;
  const Allocation found = FindAllocation(data);
  const char* begin = static_cast<const char*>(data);
  std::string what;
  if (found.type != cuda::kDevice) {
    what = "is no device memory that lives";
  } else if (!found.Reaches(communicator.device, !send)) {
    what = Text("is on device ", found.device, ", out of reach of ", communicator.device);
  } else if (bytes > found.bytes - (begin - found.base)) {
    what = Text("leaves its allocation of ", found.bytes, " bytes");
  }
  if (what.empty()) return nccl::kSuccess;
  return Violation(Rule::kBufferMemory,
                   Text(call, " by ", communicator.Name(), ": the buffer of ", bytes, " bytes at ", data, " ", what));
}

Result SendOrReceive(const char* call, bool send, void* data, size_t count, int type, int peer, nccl::Comm handle,
                     cuda::Stream stream_handle) {
  Result error = nccl::kSuccess;
  const CommRef communicator = FindCommunicator(handle, call, &error);
  if (communicator == nullptr) return error;
  if (error = communicator->CheckReady(call); error != nccl::kSuccess) return error;
  if (peer < 0 || peer >= communicator->ranks || type < 0 || type >= static_cast<int>(kTypeBytes.size()) ||
      count > (uint64_t{1} << 60)) {
    return Violation(Rule::kArgument,
                     Text(call, " by ", communicator->Name(), " with peer ", peer, ", type ", type, ", count ", count));
  }
  // Another communicator's group may be on its way to the stream: that is an order that nobody knows.
  const StreamRef stream = FindStream(stream_handle, call);
  if (stream == nullptr) return nccl::kInvalidArgument;
  if (stream->launches > 0) {
    return Violation(Rule::kStreamBeforeLaunch, Text(call, " by ", communicator->Name(), " in a stream to which the ",
                                                     "group of another communicator is on its way"));
  }
  if (stream->device() != communicator->device) {
    return Violation(Rule::kStreamDevice, Text(call, " by ", communicator->Name(), " on device ", communicator->device,
                                               " in a stream of device ", stream->device()));
  }
  const uint64_t bytes = count * kTypeBytes[type];
  if (error = CheckBuffer(call, send, *communicator, data, bytes); error != nccl::kSuccess) return error;
  AddTransfer(communicator, Transfer{send, static_cast<char*>(data), count, bytes, type, peer, stream});
  return nccl::kSuccess;
}

// A call outside of a group is a group of its own.
template <typename Call>
Result AsGroup(const Call& call) {
  StartGroup();
  const Result called = InGroup(call());
  const Result ended = EndGroup();
  return called != nccl::kSuccess ? called : ended;
}

}  // namespace
}  // namespace headrace::nccl_checker

namespace checker = headrace::nccl_checker;
namespace nccl = headrace::nccl;
namespace cuda = headrace::cuda;

extern "C" {
#define DECLARE(name, parameters) nccl::Result name parameters;
HEADRACE_NCCL_FUNCTIONS(DECLARE)
#undef DECLARE
#define DECLARE(name, parameters) const char* name parameters;
HEADRACE_NCCL_TEXT_FUNCTIONS(DECLARE)
#undef DECLARE

nccl::Result ncclGetVersion(int* version) {
  if (checker::CalledFromHostFunction(__func__)) return nccl::kInvalidUsage;
  if (version == nullptr) return nccl::kInvalidArgument;
  *version = checker::kVersion;
  return nccl::kSuccess;
}

nccl::Result ncclGetUniqueId(nccl::UniqueId* id) {
  if (checker::CalledFromHostFunction(__func__)) return nccl::kInvalidUsage;
  if (id == nullptr) return nccl::kInvalidArgument;
  return checker::MakeId(id) ? nccl::kSuccess : nccl::kSystemError;
}

nccl::Result ncclCommInitRankConfig(nccl::Comm* comm, int ranks, nccl::UniqueId id, int rank, nccl::Config* config) {
  if (checker::CalledFromHostFunction(__func__)) return nccl::kInvalidUsage;
  checker::CommRef made;
  const nccl::Result result = checker::CreateCommunicator(comm, ranks, id, rank, config, &made);
  return checker::InGroup(made == nullptr ? result : checker::AddInit(made));
}

nccl::Result ncclCommFinalize(nccl::Comm comm) {
  if (checker::CalledFromHostFunction(__func__)) return nccl::kInvalidUsage;
  nccl::Result error = nccl::kSuccess;
  const checker::CommRef found = checker::FindCommunicator(comm, __func__, &error);
  return found == nullptr ? error : found->Finalize();
}

nccl::Result ncclCommDestroy(nccl::Comm comm) {
  if (checker::CalledFromHostFunction(__func__)) return nccl::kInvalidUsage;
  if (comm == nullptr) return nccl::kSuccess;  // src/init.cc, ncclCommDestroy
  nccl::Result error = nccl::kSuccess;
  const checker::CommRef found = checker::FindCommunicator(comm, __func__, &error);
  if (found == nullptr) return error;
  if (error = found->Destroy(); error == nccl::kSuccess) checker::ForgetCommunicator(comm);
  return error;
}

nccl::Result ncclCommAbort(nccl::Comm comm) {
  if (checker::CalledFromHostFunction(__func__)) return nccl::kInvalidUsage;
  if (comm == nullptr) return nccl::kSuccess;  // src/init.cc, ncclCommAbort
  nccl::Result error = nccl::kSuccess;
  const checker::CommRef found = checker::FindCommunicator(comm, __func__, &error);
  if (found == nullptr) return error;
  checker::ForgetCommunicator(comm);
  found->Abort();
  return nccl::kSuccess;
}

nccl::Result ncclCommGetAsyncError(nccl::Comm comm, nccl::Result* error) {
  if (checker::CalledFromHostFunction(__func__)) return nccl::kInvalidUsage;
  if (error == nullptr) return nccl::kInvalidArgument;
  nccl::Result result = nccl::kSuccess;
  const checker::CommRef found = checker::FindCommunicator(comm, __func__, &result);
  if (found == nullptr) return result;
  *error = found->AsyncError();
  if (*error != nccl::kSuccess && *error != nccl::kInProgress) checker::t_last_error = found->error_text();
  return nccl::kSuccess;
}

nccl::Result ncclGroupStart() {
  return checker::CalledFromHostFunction(__func__) ? nccl::kInvalidUsage : checker::StartGroup();
}

nccl::Result ncclGroupEnd() {
  return checker::CalledFromHostFunction(__func__) ? nccl::kInvalidUsage : checker::EndGroup();
}

nccl::Result ncclSend(const void* from, size_t count, int type, int peer, nccl::Comm comm, cuda::Stream stream) {
  if (checker::CalledFromHostFunction(__func__)) return nccl::kInvalidUsage;
  return checker::AsGroup([&] {
    return checker::SendOrReceive("ncclSend", true, const_cast<void*>(from), count, type, peer, comm, stream);
  });
}

nccl::Result ncclRecv(void* to, size_t count, int type, int peer, nccl::Comm comm, cuda::Stream stream) {
  if (checker::CalledFromHostFunction(__func__)) return nccl::kInvalidUsage;
  return checker::AsGroup(
      [&] { return checker::SendOrReceive("ncclRecv", false, to, count, type, peer, comm, stream); });
}

const char* ncclGetErrorString(nccl::Result result) {
  switch (result) {
    case nccl::kSuccess:
      return "no error";
    case nccl::kUnhandledCudaError:
      return "unhandled cuda error";
    case nccl::kSystemError:
      return "unhandled system error";
    case nccl::kInternalError:
      return "internal error";
    case nccl::kInvalidArgument:
      return "invalid argument";
    case nccl::kInvalidUsage:
      return "invalid usage";
    case nccl::kRemoteError:
      return "remote process exited or there was a network error";
    case nccl::kInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(nccl::Comm) { return checker::t_last_error.c_str(); }

}  // extern "C"
