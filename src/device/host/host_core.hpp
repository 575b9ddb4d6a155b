#pragma once

#include "device/host/host_backend.hpp"
#include "device/host/host_memory.hpp"
#include "device/host/late_book.hpp"
#include "device/host/wire.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/device/topology.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock {

class HostStream;

/// The state that the streams of one host device share with each other and with the backend. The streams'
/// threads keep it alive, since they may finish their work after the backend is gone.
struct HostCore : std::enable_shared_from_this<HostCore> {
  explicit HostCore(const HostOptions& options, std::size_t memory_bytes)
      : late(options.late),
        memory(memory_bytes, options.lock_bytes, options.late),
        to_device(options.link_bytes_per_second, options.latency),
        to_host(options.link_bytes_per_second, options.latency),
        to_peers(options.peer_bytes_per_second, options.latency),
        from_peers(options.peer_bytes_per_second, options.latency),
        late_book(LateBook::of_process()),
        spin(host_topology().processors > kBusyThreads ? std::chrono::microseconds(50)
                                                       : std::chrono::microseconds(0)) {}

  /// A stream, who fills staging memory and who consumes: a thread that polls keeps a processor from them.
  static constexpr unsigned kBusyThreads = 3;

  const bool late;
  HostMemory memory;
  Wire to_device;
  Wire to_host;
  Wire to_peers;
  Wire from_peers;
  const std::shared_ptr<LateBook> late_book;
  const std::chrono::nanoseconds spin;       ///< how long an idle thread polls before it sleeps
  std::atomic<bool> closing{false};          ///< nobody can end a wait_value any more
  std::atomic<bool> illegal_address{false};  ///< a table named other than device and locked memory

  std::mutex streams_mutex;
  std::vector<std::weak_ptr<HostStream>> streams;  // guarded by streams_mutex

  /// Visits the streams whose threads have not ended. Takes no memory.
  void for_each_live(FunctionRef<void(const std::shared_ptr<HostStream>&)> visit) noexcept;
  void add(const std::shared_ptr<HostStream>& stream);
};

}  // namespace penstock
