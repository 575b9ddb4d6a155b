#include "feed/feed_account.hpp"

#include "frameworks.hpp"
#include "interpreter_lock.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

namespace penstock::python {
namespace {

constexpr std::size_t kTimelineBatches = 4096;

AccountOptions account_options(const LinkProfile& profile) {
  return {.timeline_batches = kTimelineBatches,
          .link_ceiling = profile.measured ? profile.ceiling(CopyDirection::h2d) : 0,
          .wraps_loader = true};
}

}  // namespace

FeedAccount::FeedAccount(std::shared_ptr<Engine> engine, std::size_t prefetch_depth)
    : engine_(std::move(engine)), account_(engine_->device(), account_options(engine_->profile())) {
  host_.prefetch_depth = prefetch_depth;
}

FeedStatistics FeedAccount::statistics() {
  engine_->refuse_fork();
  FeedStatistics statistics;
  {
    const Unlocked unlocked;
    statistics = account_.total();
  }
  statistics.knows_consumer = host_.knows_consumer;
  statistics.arrays = host_.arrays;
  statistics.gather_seconds = host_.gather_seconds;
  statistics.send_pin_seconds = host_.send_pin_seconds;
  statistics.startup_seconds = host_.startup_seconds;
  statistics.loader_seconds = host_.loader_seconds;
  // A worker's first batch of an epoch is not timed, and it is waited for.
  const double all = staged_ > 0 ? 1 + static_cast<double>(unstaged_) / static_cast<double>(staged_) : 1;
  statistics.fetch_seconds = all * host_.fetch_seconds;
  statistics.collate_seconds = all * host_.collate_seconds;
  statistics.write_seconds = all * host_.write_seconds;
  statistics.receive_seconds = all * host_.receive_seconds;
  statistics.pin_seconds = all * host_.pin_seconds;
  statistics.stages_unknown = host_.stages_unknown;
  statistics.loader_workers = host_.loader_workers;
  statistics.starts_workers = host_.starts_workers;
  statistics.land_seconds = host_.land_seconds;
  statistics.consumer_seconds = host_.consumer_seconds;
  statistics.prefetch_depth = host_.prefetch_depth;
  return statistics;
}

void FeedAccount::of_workers(unsigned count, bool starts_workers) {
  host_.loader_workers = count;
  host_.starts_workers = starts_workers;
}

std::vector<BatchTimes> FeedAccount::timeline() {
  engine_->refuse_fork();
  const Unlocked unlocked;
  return account_.timeline();
}

std::optional<StreamHandle> FeedIteration::current_stream() const {
  const Engine& engine = *feed_->engine_;
  Torch* const torch = engine.is_cuda() ? Torch::get() : nullptr;
  if (torch == nullptr) return std::nullopt;
  return torch->current_stream(engine.index());
}

void FeedIteration::ask(std::size_t ready) {
  const Engine& engine = *feed_->engine_;
  engine.refuse_fork();
  const double asked = now();
  if (left_) feed_->host_.consumer_seconds += asked - *std::exchange(left_, std::nullopt);
  const auto current = current_stream();
  if (engine.is_cuda() && !current) feed_->host_.knows_consumer = false;
  stream_.reset();
  if (current) stream_.emplace(engine.device().wrap_stream(*current));
  const bool is_first = !epoch_;
  {
    const Unlocked unlocked;
    request_.emplace(feed_->account_, stream_ ? &*stream_ : nullptr, is_first);
  }
  if (is_first) epoch_ = feed_->epochs_++;
  ready_ = ready;
  times_ = {.epoch = *epoch_, .batch = batches_};
}

void FeedIteration::load() { part_begin_ = now(); }

void FeedIteration::loaded() {
  const double answered = now();
  FeedStatistics& host = feed_->host_;
  (has_sent_ ? host.loader_seconds : host.startup_seconds) += answered - part_begin_;
  // An iteration's first request loads and sends several batches in turn. Their loading counts as one.
  const double earlier = times_.loader_end - times_.loader_begin;
  times_.loader_begin = part_begin_ - earlier;
  times_.loader_end = part_begin_ = answered;
}

void FeedIteration::staged(double fetch, double collate, double write, double receive, double pin) {
  FeedStatistics& host = feed_->host_;
  ++feed_->staged_;
  host.fetch_seconds += fetch;
  host.collate_seconds += collate;
  host.write_seconds += write;
  host.receive_seconds += receive;
  host.pin_seconds += pin;
}

void FeedIteration::unstaged() {
  if (feed_->host_.stages_unknown.empty()) ++feed_->unstaged_;
}

Flights FeedIteration::send(const EngineDestination& destination, nb::handle tree,
                            const std::vector<nb::object>& expand, bool pin, const FilledSlot* slot) {
  Flights flights = destination.send(tree, expand, pin, true, slot);
  has_sent_ = true;
  times_.gather_begin = part_begin_;
  times_.gather_end = now();
  feed_->host_.gather_seconds += times_.gather_end - times_.gather_begin;
  feed_->host_.send_pin_seconds += flights.first().pin_seconds();
  return flights;
}

nb::object FeedIteration::land(Flights& flights) {
  const Flight& flight = flights.first();
  Account& account = feed_->account_;
  const double begin = now();
  const auto current = current_stream();
  // Times are measured on the stream that was current when the batch was asked for.
  const bool is_known = stream_ ? current == stream_->native() : !feed_->engine_->is_cuda();
  TimedBatch* const timed = is_known ? account.open() : nullptr;
  if (timed != nullptr) timed->transfers = flight.transfers();
  nb::object batch;
  try {
    batch = flights.land_on(current.value_or(nullptr));
  } catch (...) {
    account.discard(timed);
    throw;
  }
  times_.samples = flight.samples();
  times_.link_bytes = flights.link_bytes();
  ++batches_;
  ++feed_->host_.batches;
  feed_->host_.arrays += flight.arrays();
  {
    const Unlocked unlocked;
    request_->answer({.timed = timed,
                      .times = times_,
                      .delivered_bytes = flight.bytes() + flight.bytes_left(),
                      .ready = ready_});
    request_.reset();
  }
  feed_->host_.land_seconds += now() - begin;
  return batch;
}

void FeedIteration::leave(bool over) {
  if (request_) {
    const Unlocked unlocked;
    request_->end(*epoch_);
    request_.reset();
  }
  if (!over) left_ = now();
}

void bind_feed_account(nb::module_& module) {
  nb::class_<FeedAccount>(module, "FeedAccount", "The account of a feed.")
      .def(nb::new_([](std::shared_ptr<Engine> engine, std::size_t prefetch_depth) {
             return std::make_shared<FeedAccount>(std::move(engine), prefetch_depth);
           }),
           nb::arg("engine"), nb::arg("prefetch_depth"))
      .def("stats", &FeedAccount::statistics)
      .def("timeline", &FeedAccount::timeline)
      .def("no_stages", &FeedAccount::no_stages, nb::arg("why"),
           "Why the wrapped loader's stages are not timed; empty if they are.")
      .def("of_workers", &FeedAccount::of_workers, nb::arg("count"), nb::arg("starts_workers"),
           "How many workers the wrapped loader has, and whether it may start them in each epoch.")
      .def_prop_ro("batches", &FeedAccount::batches, "Batches that were handed out.");
  nb::class_<FeedIteration>(module, "FeedIteration", "One iteration of a feed, for its account.")
      .def(nb::init<std::shared_ptr<FeedAccount>>(), nb::arg("account"))
      .def("ask", &FeedIteration::ask, nb::arg("ready"))
      .def("load", &FeedIteration::load)
      .def("loaded", &FeedIteration::loaded)
      .def("staged", &FeedIteration::staged, nb::arg("fetch"), nb::arg("collate"), nb::arg("write"),
           nb::arg("receive"), nb::arg("pin"))
      .def("unstaged", &FeedIteration::unstaged)
      .def("pinned", &FeedIteration::pinned, nb::arg("seconds"))
      .def("send", &FeedIteration::send, nb::arg("destination"), nb::arg("tree").none(), nb::arg("expand"),
           nb::arg("pin"), nb::arg("slot").none() = nb::none())
      .def("land", &FeedIteration::land, nb::arg("flights"))
      .def("leave", &FeedIteration::leave, nb::arg("over"));
}

}  // namespace penstock::python
