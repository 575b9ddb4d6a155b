#pragma once

#include "device/cuda/cuda_context.hpp"
#include "device/cuda/kernel_arguments.hpp"

#include <penstock/device/requests.hpp>

#include <string>

namespace penstock::cuda {

/// Our kernels, compiled by the driver for one device. All are loaded at once: a kernel that is loaded at its
/// first launch may wait for the whole device, and so forever for a stream that is held back on purpose.
class Kernels {
 public:
  Kernels(const PrimaryContext& context, unsigned multiprocessors);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  void copy_pieces(const CopyPiece* pieces, std::size_t count, Stream stream) const;
  /// `request` has been checked.
  void gather(const GatherRequest& request, Stream stream) const;
  /// `request` has been checked.
  void split_rows(const SplitRequest& request, Stream stream) const;
  /// `request` has been checked.
  void fill_order(const OrderRequest& request, Stream stream) const;
  /// `request` has been checked.
  void hash(const HashRequest& request, Stream stream) const;
  /// `arguments.pictures` is reachable by the device.
  void render(const RenderArguments& arguments, Stream stream) const;
  void occupy(std::uint64_t nanoseconds, Stream stream) const;

 private:
  struct Kernel {
    Function function = nullptr;
    const char* name = nullptr;
  };

  [[nodiscard]] Kernel load(const char* name) const;
  void gather_bytes(const GatherRequest& request, std::uint64_t stride, Stream stream) const;
  void gather_widen(const GatherRequest& request, std::uint64_t stride, Stream stream) const;
  [[nodiscard]] unsigned gather_blocks(const GatherRequest& request, std::uint64_t chunks) const;
  template <typename Arguments>
  void launch(const Kernel& kernel, unsigned blocks, unsigned threads, Arguments arguments,
              Stream stream) const;

  const PrimaryContext& context_;
  unsigned multiprocessors_;
  Module module_ = nullptr;
  Kernel copy_pieces_;
  Kernel gather_bytes_aligned_;
  Kernel gather_bytes_;
  Kernel gather_widen_1_2_;
  Kernel gather_widen_1_4_;
  Kernel gather_widen_2_4_;
  Kernel gather_widen_;
  Kernel split_rows_;
  Kernel fill_order_;
  Kernel render_;
  Kernel hash_;
  Kernel occupy_;
};

}  // namespace penstock::cuda
