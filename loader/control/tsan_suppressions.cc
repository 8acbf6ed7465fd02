// Test only. gRPC's library is not instrumented, but its header code is compiled into ours: the thread sanitizer sees
// the accesses and not the locks between them. The same holds for the hand-over of a new stream to the threads that
// call its reactions. What stays watched: the event queue, the service's thread, and the callers' side of streams.
extern "C" const char* __tsan_default_suppressions() {  // NOLINT: the sanitizer's name
  return "race:grpc::internal::\nrace:grpcpp/\nrace:^OnCancel$\nrace:^OnReadDone$\nrace:^OnWriteDone$\nrace:^OnDone$\n";
}
