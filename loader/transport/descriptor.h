#ifndef HEADRACE_LOADER_TRANSPORT_DESCRIPTOR_H_
#define HEADRACE_LOADER_TRANSPORT_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace headrace {

// A file descriptor that closes itself; -1 is none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = other.Release();
    }
    return *this;
  }
  ~Descriptor() { Reset(); }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_DESCRIPTOR_H_
