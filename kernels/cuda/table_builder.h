#ifndef HEADRACE_KERNELS_CUDA_TABLE_BUILDER_H_
#define HEADRACE_KERNELS_CUDA_TABLE_BUILDER_H_

// Collects descriptors on the host and lays them out for the device.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cuda/backend_api.h"
#include "kernels/cuda/table.h"

namespace headrace::kernels {

template <class Descriptor>
class TableBuilder {
 public:
  // `tiles` > 0.
  void Append(const Descriptor& descriptor, int64_t tiles) {
    descriptors_.push_back(descriptor);
    first_tile_.push_back(first_tile_.back() + tiles);
  }

  std::span<const Descriptor> descriptors() const { return descriptors_; }

  // The table as one block of bytes to be copied to the device, whole; at least 16-byte aligned there. May be used for
  // any number of launches.
  int64_t ImageBytes() const {
    return DescriptorsAt() + static_cast<int64_t>(descriptors_.size() * sizeof(Descriptor));
  }
  std::vector<std::byte> Image() const {
    std::vector<std::byte> image(static_cast<size_t>(ImageBytes()));
    std::memcpy(image.data(), first_tile_.data(), first_tile_.size() * sizeof(int64_t));
    if (!descriptors_.empty()) {
      std::memcpy(image.data() + DescriptorsAt(), descriptors_.data(), descriptors_.size() * sizeof(Descriptor));
    }
    return image;
  }
  // What a launch takes, once the image is at `at`.
  HeadraceTable At(const std::byte* at) const {
    return {at + DescriptorsAt(), reinterpret_cast<const int64_t*>(at), static_cast<int64_t>(descriptors_.size()),
            first_tile_.back()};
  }

 private:
  int64_t DescriptorsAt() const { return static_cast<int64_t>((first_tile_.size() * sizeof(int64_t) + 15) / 16 * 16); }

  std::vector<Descriptor> descriptors_;
  std::vector<int64_t> first_tile_{0};
};

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_CUDA_TABLE_BUILDER_H_
