#pragma once

#include <penstock/core/bytes.hpp>

#include <array>
#include <cstddef>

namespace penstock {

/// The figures that suit a device. Its backend chooses them; nobody else asks which device it is. A measured
/// LinkProfile goes before them.
///
/// The defaults are those of a GPU. They were found on an H200 and an H100, both behind PCIe 5 x16
/// (docs/performance.md), and the first five are lower than any GPU that is in use.
struct DeviceTuning {
  // What a link does as long as nobody has measured it.

  /// The share of the rate that a link states which transfers surely reach.
  double usable_link_share = 0.75;
  /// Bytes per second each way of a link that states no rate: that share of PCIe 3 x16.
  double unstated_link_rate = 9e9;
  /// Bytes per second of copies within the device.
  double device_copy_rate = 200e9;
  /// Seconds of a small copy, from the request to its end, and from one such copy to the next.
  double copy_latency = 8e-6;
  double copy_interval = 4e-6;

  // Staged transfers.

  /// Host threads that fill the link; one processor of the machine is left for others.
  unsigned staging_threads = 7;
  /// The first chunk of a transfer: small, since the wire waits for it to be filled.
  std::size_t first_staged_chunk = 512 * kKiB;
  /// Largest chunks. The first serves until the measuring of the link has tried them all: it hides what each
  /// copy costs on the wire.
  std::array<std::size_t, 4> staged_chunks{12 * kMiB, 16 * kMiB, 8 * kMiB, 4 * kMiB};

  /// Packed transfers.
  struct Packing {
    /// Chunks double from the first to the largest: the wire starts early and then has long copies.
    std::size_t first_chunk_bytes = 256 * kKiB;
    std::size_t largest_chunk_bytes = 1 * kMiB;
    /// Largest part of an image that is in pinned memory at once.
    std::size_t window_bytes = 32 * kMiB;
    /// A copy of a shorter run of adjoining pieces costs more than its bytes through a kernel.
    std::size_t shortest_run_bytes = 32 * kKiB;
    /// Whether packing writes past the processor's cache.
    bool streaming_stores = true;
  };
  Packing packing;

  // Arrays among others that are worth a transfer of their own; smaller ones are packed together.
  std::size_t alone_pageable_bytes = 256 * kKiB;
  std::size_t alone_pinned_bytes = 64 * kKiB;

  /// Blocks of a kernel that reads locked host memory, alone on the link: more than fill it.
  unsigned link_blocks = 16;

  // Batches.

  /// Smallest samples that are worth a copy each. A copy of a batch costs the host half a microsecond, in
  /// which PCIe 5 x16 carries some 30 KiB; copies of 24 KiB and less take another way through the driver,
  /// several times as slow.
  std::size_t copied_sample_bytes = 32 * kKiB;
  /// Blocks of a loader's kernel that reads over the link, on each of its streams: four fill it, and a kernel
  /// that converts has more to do.
  unsigned copying_blocks = 4;
  unsigned converting_blocks = 8;
  unsigned most_blocks = 32;
};

}  // namespace penstock
