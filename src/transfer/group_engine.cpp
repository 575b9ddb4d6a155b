#include "core/shared/start_thread.hpp"
#include "transfer/group_job.hpp"
#include "transfer/group_member.hpp"
#include "transfer/region_kind.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/core/log.hpp>
#include <penstock/device/topology.hpp>
#include <penstock/transfer/group_engine.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kChunkAlignment = 4096;
constexpr unsigned kSlots = 4;

void check_group_options(const DeviceGroup& group, const GroupOptions& options) {
  if (options.slots != 0 && (options.slots < 2 || options.slots > 64)) {
    throw InvalidArgument(fmt::format("{} slots were asked for; use 2 to 64", options.slots));
  }
  if (options.chunk_bytes != 0 && options.chunk_bytes < kChunkAlignment) {
    throw InvalidArgument(
        fmt::format("chunks of {} bytes were asked for; use 4096 or more", options.chunk_bytes));
  }
  if (!options.profiles.empty() && options.profiles.size() != group.size()) {
    throw InvalidArgument(fmt::format("{} profiles were given for a group of {}; give one for each or none",
                                      options.profiles.size(), group.size()));
  }
  if (options.measured && options.measured->members.size() != group.size()) {
    throw InvalidArgument(
        fmt::format("the measured profile has {} devices, and the group {}; measure this one",
                    options.measured->members.size(), group.size()));
  }
}

}  // namespace

class GroupEngineImpl {
 public:
  /// What a function writes.
  struct Filled {
    std::size_t bytes = 0;
    FillFunction fill;
  };

  GroupEngineImpl(DeviceGroup group, GroupOptions options)
      : group_(std::move(group)), measured_(std::move(options.measured)) {
    if (options.profiles.empty()) {
      for (std::size_t i = 0; i < group_.size(); ++i) {
        options.profiles.push_back(LinkProfile::defaults(group_[i].info()));
      }
    }
    if (options.slots == 0) options.slots = measured_ ? measured_->slots : kSlots;
    sizes_.largest = align_up(largest_chunk(options), kChunkAlignment);
    sizes_.first = std::min(group_[0].info().tuning.first_staged_chunk, sizes_.largest);
    for (std::size_t i = 0; i < group_.size(); ++i) {
      const LinkProfile& profile = options.profiles[i];
      members_.push_back(std::make_unique<GroupMember>(
          group_[i],
          GroupMemberOptions{.threads = options.threads != 0 ? options.threads : profile.staging_threads,
                             .slots = options.slots,
                             .chunk_bytes = sizes_.largest,
                             .stores = profile.streaming_stores ? StoreKind::streaming : StoreKind::cached,
                             .link = measured_ ? measured_->link_beside_others(i) : 0,
                             .peers = measured_ ? measured_->members[i].peers : std::vector<double>{}}));
    }
    for (const std::string& pair : group_.unreached()) log_warning(pair);
    threads_.reserve(group_.size());
    try {
      for (std::size_t i = 0; i < group_.size(); ++i) {
        threads_.push_back(start_thread("penstock-group", [this, i] { run(i); }));
      }
    } catch (...) {
      close();
      throw;
    }
  }
  ~GroupEngineImpl() { close(); }
  GroupEngineImpl(const GroupEngineImpl&) = delete;
  GroupEngineImpl& operator=(const GroupEngineImpl&) = delete;

  /// The lanes of a transfer to all members. If it `may_replicate`, each pulls for itself if that is as fast.
  std::vector<GroupJob::Lane> lanes_to_all(std::span<std::byte* const> destinations,
                                           bool may_replicate) const {
    if (destinations.size() != group_.size()) {
      throw InvalidArgument(fmt::format("{} destinations were given for a group of {}; give one for each",
                                        destinations.size(), group_.size()));
    }
    std::vector<GroupJob::Lane> lanes;
    if (may_replicate && measured_ && !measured_->feeding_once_pays()) {
      for (std::size_t i = 0; i < group_.size(); ++i) lanes.push_back({.carriers = {i}, .receivers = {i}});
      return lanes;
    }
    for (const auto& clique : group_.cliques()) lanes.push_back({.carriers = clique, .receivers = clique});
    return lanes;
  }
  /// The lane of a transfer to one member.
  std::vector<GroupJob::Lane> lane_to(std::size_t receiver) const {
    if (receiver >= group_.size()) {
      throw InvalidArgument(
          fmt::format("member {} is not in a group of {}; members count from 0", receiver, group_.size()));
    }
    GroupJob::Lane lane;
    lane.receivers.push_back(receiver);
    const bool pays = !measured_ || measured_->relay_pays(receiver);
    for (std::size_t i = 0; i < group_.size(); ++i) {
      if (i == receiver || (pays && group_.reaches(i, receiver))) lane.carriers.push_back(i);
    }
    return {std::move(lane)};
  }

  template <typename Sent, typename Options>
  Transfer feed_once(std::span<std::byte* const> destinations, Sent&& sent, const Options& options) {
    // Whoever fills is asked for each byte once.
    constexpr bool kIsFilled = std::is_same_v<std::remove_cvref_t<Sent>, Filled>;
    return send(lanes_to_all(destinations, !kIsFilled), {destinations.begin(), destinations.end()},
                std::forward<Sent>(sent), options);
  }
  template <typename Sent, typename Options>
  Transfer relay(std::size_t receiver, std::byte* destination, Sent&& sent, const Options& options) {
    std::vector<GroupJob::Lane> lane = lane_to(receiver);
    std::vector<std::byte*> destinations(group_.size());
    destinations[receiver] = destination;
    return send(std::move(lane), std::move(destinations), std::forward<Sent>(sent), options);
  }

  [[nodiscard]] std::vector<std::size_t> carried() const {
    const std::lock_guard lock(monitor_->mutex);
    return carried_;
  }
  [[nodiscard]] const DeviceGroup& group() const noexcept { return group_; }
  [[nodiscard]] bool is_forked() const noexcept { return generation_ != fork_generation(); }

 private:
  /// What the threads wait for. The handles of transfers keep it, so it outlives the engine.
  struct Monitor {
    std::mutex mutex;
    std::condition_variable changed;
    bool closing = false;
    std::deque<std::shared_ptr<GroupJob>> jobs;  ///< in the order of the requests, until they are over

    [[nodiscard]] std::shared_ptr<GroupJob> with_chunk_for(std::size_t member) const {
      const auto job = std::ranges::find_if(jobs, [&](const auto& each) { return each->has_chunk(member); });
      return job == jobs.end() ? nullptr : *job;
    }
    /// Removes a job that is over.
    [[nodiscard]] std::shared_ptr<GroupJob> take_over() {
      const auto job = std::ranges::find_if(jobs, [](const auto& each) { return each->is_over(); });
      if (job == jobs.end()) return nullptr;
      std::shared_ptr<GroupJob> taken = std::move(*job);
      jobs.erase(job);
      return taken;
    }
  };

  Transfer send(std::vector<GroupJob::Lane> lanes, std::vector<std::byte*> destinations,
                std::span<const GroupPiece> pieces, const GroupCopyOptions& options) {
    const auto image_at = [&](std::byte* base) {
      std::vector<TransferPiece> sent;
      sent.reserve(pieces.size());
      for (const GroupPiece& piece : pieces) {
        sent.push_back({piece.source, base + piece.offset, piece.bytes});
      }
      const PackedPlan plan(sent, CopyDirection::h2d);
      return GroupImage{.runs = plan.runs(), .base = base, .sources = plan, .fill = {}};
    };
    std::size_t bytes = 0;
    for (const GroupPiece& piece : pieces) bytes += piece.bytes;
    return submit(std::move(lanes), std::move(destinations), {bytes, pieces.size()}, image_at, options);
  }

  Transfer send(std::vector<GroupJob::Lane> lanes, std::vector<std::byte*> destinations, Filled filled,
                const GroupFillOptions& options) {
    if (!filled.fill) throw InvalidArgument("a fill has no function; give one that writes the bytes");
    const auto image_at = [&](std::byte* base) {
      return GroupImage{.runs = {{base, {0, filled.bytes}}},
                        .base = base,
                        .sources = std::nullopt,
                        .fill = std::move(filled.fill)};
    };
    return submit(std::move(lanes), std::move(destinations), {filled.bytes, 1}, image_at,
                  {.after = options.after});
  }

  [[nodiscard]] bool is_locked(std::size_t member, const PackedPlan& plan,
                               std::optional<MemoryKind> kind) const {
    return std::ranges::all_of(plan.pieces(), [&](const TransferPiece& piece) {
      const MemoryKind is = kind ? *kind : kind_of_region(group_[member], piece.source, piece.bytes);
      if (is == MemoryKind::device) {
        throw InvalidArgument("a source of a group's transfer is device memory; give memory of the host");
      }
      return is != MemoryKind::pageable;
    });
  }

  [[nodiscard]] std::size_t largest_chunk(const GroupOptions& options) const {
    if (options.chunk_bytes != 0) return options.chunk_bytes;
    if (measured_) return measured_->chunk_bytes;
    return std::ranges::min(options.profiles, {}, &LinkProfile::chunk_bytes).chunk_bytes;
  }

  struct Amount {
    std::size_t bytes = 0;
    std::size_t pieces = 0;
  };

  /// A receiver to whose memory the others do not get pulls all for itself, in a lane of its own.
  void take_out_closed(std::vector<GroupJob::Lane>& lanes, std::span<std::byte* const> destinations) {
    std::vector<GroupJob::Lane> own;
    for (GroupJob::Lane& lane : lanes) {
      if (lane.carriers.size() < 2) continue;
      for (const std::size_t receiver : std::vector(lane.receivers)) {
        if (group_[receiver].is_open_to_peers(destinations[receiver])) continue;
        own.push_back({.carriers = {receiver}, .receivers = {receiver}});
        std::erase(lane.carriers, receiver);
        std::erase(lane.receivers, receiver);
      }
    }
    if (own.empty()) return;
    std::erase_if(lanes, [](const GroupJob::Lane& lane) { return lane.receivers.empty(); });
    std::ranges::copy(own, std::back_inserter(lanes));
    std::call_once(told_of_closed_, [&] {
      log_warning(fmt::format(
          "{} receives over its own link alone: other GPUs do not get to memory that is mapped for "
          "one GPU or taken from a pool of the driver. If PyTorch allocated it, leave "
          "expandable_segments and backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF.",
          group_[own.front().receivers.front()].info().spec));
    });
  }

  /// `destinations` of the members that receive; the others' are null. `image_at` makes the image for one of
  /// them.
  Transfer submit(std::vector<GroupJob::Lane> lanes, std::vector<std::byte*> destinations, Amount amount,
                  FunctionRef<GroupImage(std::byte*)> image_at, const GroupCopyOptions& options) {
    std::vector<std::size_t> receivers;
    for (const GroupJob::Lane& lane : lanes) {
      receivers.insert(receivers.end(), lane.receivers.begin(), lane.receivers.end());
    }
    std::ranges::sort(receivers);
    if (!options.after.empty() && options.after.size() != receivers.size()) {
      throw InvalidArgument(fmt::format("a transfer to {} devices comes after {} streams; give one for each",
                                        receivers.size(), options.after.size()));
    }
    if (amount.bytes == 0) return Transfer();
    for (const std::size_t receiver : receivers) {
      const std::byte* const destination = destinations[receiver];
      if (destination == nullptr || !group_[receiver].owns(destination)) {
        throw InvalidArgument(fmt::format("the destination on {} is {}", group_[receiver].info().spec,
                                          destination == nullptr ? "null" : "not memory of that device"));
      }
    }
    take_out_closed(lanes, destinations);
    GroupImage image = image_at(destinations[receivers.front()]);

    std::vector<bool> locked(group_.size());
    bool any_locked = false;
    unsigned threads = 0;
    for (const GroupJob::Lane& lane : lanes) {
      for (const std::size_t carrier : lane.carriers) {
        locked[carrier] = image.sources && is_locked(carrier, *image.sources, options.source_kind);
        any_locked = any_locked || locked[carrier];
        if (!locked[carrier]) threads += members_[carrier]->threads();
      }
    }
    const auto state =
        std::make_shared<TransferState>(any_locked ? TransferPath::direct : TransferPath::staged,
                                        CopyDirection::h2d, amount.bytes, amount.pieces);
    state->set_threads(threads);
    const auto job =
        std::make_shared<GroupJob>(state, std::move(image), std::move(lanes), group_.size(), sizes_);
    job->destinations = std::move(destinations);
    job->locked = std::move(locked);
    for (std::size_t i = 0; i < options.after.size(); ++i) {
      if (options.after[i] == nullptr) continue;
      EventPool::Handle& after = job->after[receivers[i]];
      after = members_[receivers[i]]->events().take();
      after->record(*options.after[i]);
    }
    state->on_cancel = [monitor = monitor_, weak = std::weak_ptr(job)] {
      const auto alive = weak.lock();
      if (!alive) return false;
      const std::lock_guard lock(monitor->mutex);
      return alive->cancel();  // a member's thread is at work for it, and will find out
    };
    const std::lock_guard lock(monitor_->mutex);
    monitor_->jobs.push_back(job);
    monitor_->changed.notify_all();
    return Transfer(state);
  }

  /// A chunk that a member has taken and not returned.
  struct Carried {
    std::shared_ptr<GroupJob> job;
    ImageRange chunk;
    GroupMember::Room room;
  };

  void run(std::size_t self) {
    bind_thread_to_node(group_[self].info().numa_node);
    std::optional<Carried> carried;
    std::unique_lock lock(monitor_->mutex);
    for (;;) {
      std::shared_ptr<GroupJob> over;
      std::shared_ptr<GroupJob> job;
      monitor_->changed.wait(lock, [&] {
        over = monitor_->take_over();
        if (!over && !carried) job = monitor_->with_chunk_for(self);
        return over || carried || job || monitor_->closing;
      });
      if (over) {
        lock.unlock();
        end(*over);
        over.reset();
        lock.lock();
      } else if (carried) {
        lock.unlock();
        carried = finish_chunk(*std::exchange(carried, std::nullopt), self);
        lock.lock();
      } else if (job) {
        lock.unlock();
        carried = begin_chunk(job, self);
        job.reset();
        lock.lock();
      } else {
        return;
      }
    }
  }

  /// Waits until the member's link has room, and begins with the next chunk if there still is one by then.
  std::optional<Carried> begin_chunk(const std::shared_ptr<GroupJob>& job, std::size_t self) noexcept {
    try {
      const GroupMember::Room room = members_[self]->wait_for_room(*job, self);
      return take_chunk(job, self, room);
    } catch (const OutOfMemory& error) {
      {
        const std::lock_guard lock(monitor_->mutex);
        if (job->is_over()) return std::nullopt;
        if (!job->sit_out(self)) {
          job->fail(std::current_exception());
          return std::nullopt;
        }
        monitor_->changed.notify_all();  // who gave way to it
      }
      log_warning(fmt::format("{} carries nothing of a group's transfer: {}", group_[self].info().spec,
                              error.what()));
    } catch (...) {
      const std::lock_guard lock(monitor_->mutex);
      if (!job->is_over()) job->fail(std::current_exception());
    }
    return std::nullopt;
  }

  /// Sends a chunk once it is filled. Returns the next one, if its bytes are being filled by then.
  std::optional<Carried> finish_chunk(Carried carried, std::size_t self) noexcept {
    GroupJob& job = *carried.job;
    std::optional<Carried> next;
    std::unique_lock lock(monitor_->mutex, std::defer_lock);
    try {
      members_[self]->finish(job, self, carried.chunk, carried.room,
                             [&] { next = begin_chunk_if_room(carried.job, self); });
      lock.lock();
      carried_[self] += carried.chunk.bytes();
    } catch (...) {
      lock.lock();
      job.fail(std::current_exception());
    }
    job.return_chunk();
    return next;
  }

  std::optional<Carried> begin_chunk_if_room(const std::shared_ptr<GroupJob>& job,
                                             std::size_t self) noexcept {
    {
      // Room that is found counts as taken.
      const std::lock_guard lock(monitor_->mutex);
      if (!job->has_chunk(self)) return std::nullopt;
    }
    try {
      const std::optional<GroupMember::Room> room = members_[self]->find_room(*job, self);
      return room ? take_chunk(job, self, *room) : std::nullopt;
    } catch (...) {
      const std::lock_guard lock(monitor_->mutex);
      job->fail(std::current_exception());
      return std::nullopt;
    }
  }

  std::optional<Carried> take_chunk(const std::shared_ptr<GroupJob>& job, std::size_t self,
                                    const GroupMember::Room& room) noexcept {
    std::unique_lock lock(monitor_->mutex);
    const double own = members_[job->lane_of(self).receivers.front()]->link_pace();
    const std::optional<ImageRange> chunk =
        job->take_chunk(self, members_[self]->should_give_way(*job, self, own));
    if (!chunk) return std::nullopt;
    monitor_->changed.notify_all();  // who gives way may have waited for this
    lock.unlock();
    try {
      members_[self]->begin(*job, self, *chunk, room);
    } catch (...) {
      lock.lock();
      job->fail(std::current_exception());
      job->return_chunk();
      return std::nullopt;
    }
    return Carried{.job = job, .chunk = *chunk, .room = room};
  }

  void end(GroupJob& job) noexcept {
    if (!job.stopping()) {
      std::erase_if(job.ends, [](const EventPool::Handle& end) { return end == nullptr; });
      job.state->submitted(std::move(job.ends));
      return;
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (job.ends[i]) members_[i]->drain();
    }
    if (job.failure()) {
      job.state->fail(job.failure());
    } else {
      job.state->cancelled();
    }
  }

  void close() noexcept {
    {
      const std::lock_guard lock(monitor_->mutex);
      monitor_->closing = true;
      for (const auto& job : monitor_->jobs) job->cancel();
      monitor_->changed.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    for (const auto& member : members_) member->drain();
  }

  const DeviceGroup group_;
  const std::optional<GroupProfile> measured_;
  GroupJob::ChunkSizes sizes_;
  const std::uint64_t generation_ = fork_generation();
  std::vector<std::unique_ptr<GroupMember>> members_;
  const std::shared_ptr<Monitor> monitor_ = std::make_shared<Monitor>();
  std::once_flag told_of_closed_;
  std::vector<std::size_t> carried_ = std::vector<std::size_t>(group_.size());  // guarded by the monitor
  std::vector<std::thread> threads_;
};

GroupEngine::GroupEngine(DeviceGroup group, GroupOptions options) {
  check_group_options(group, options);
  impl_ = std::make_unique<GroupEngineImpl>(std::move(group), std::move(options));
}

GroupEngine::~GroupEngine() {
  // As a TransferEngine: in a child, nothing can be torn down.
  if (impl_ && impl_->is_forked()) static_cast<void>(impl_.release());
}

Transfer GroupEngine::feed_once(std::span<std::byte* const> destinations, std::span<const GroupPiece> pieces,
                                const GroupCopyOptions& options) {
  return impl_->feed_once(destinations, pieces, options);
}

Transfer GroupEngine::feed_once(std::span<std::byte* const> destinations, const void* source,
                                std::size_t bytes, const GroupCopyOptions& options) {
  const GroupPiece piece{static_cast<const std::byte*>(source), 0, bytes};
  return impl_->feed_once(destinations, std::span(&piece, 1), options);
}

Transfer GroupEngine::relay(std::size_t receiver, std::byte* destination, std::span<const GroupPiece> pieces,
                            const GroupCopyOptions& options) {
  return impl_->relay(receiver, destination, pieces, options);
}

Transfer GroupEngine::relay(std::size_t receiver, void* destination, const void* source, std::size_t bytes,
                            const GroupCopyOptions& options) {
  const GroupPiece piece{static_cast<const std::byte*>(source), 0, bytes};
  return impl_->relay(receiver, static_cast<std::byte*>(destination), std::span(&piece, 1), options);
}

Transfer GroupEngine::feed_once_filled(std::span<std::byte* const> destinations, std::size_t bytes,
                                       FillFunction fill, const GroupFillOptions& options) {
  return impl_->feed_once(destinations, GroupEngineImpl::Filled{bytes, std::move(fill)}, options);
}

Transfer GroupEngine::relay_filled(std::size_t receiver, void* destination, std::size_t bytes,
                                   FillFunction fill, const GroupFillOptions& options) {
  return impl_->relay(receiver, static_cast<std::byte*>(destination),
                      GroupEngineImpl::Filled{bytes, std::move(fill)}, options);
}

std::vector<std::size_t> GroupEngine::carried() const { return impl_->carried(); }

const DeviceGroup& GroupEngine::group() const noexcept { return impl_->group(); }

}  // namespace penstock
