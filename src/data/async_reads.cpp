#include "data/async_reads.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace penstock {

namespace {

long get_events(aio_context_t context, long least, long most, io_event* events) {
  return ::syscall(SYS_io_getevents, context, least, most, events, nullptr);
}

std::atomic<AsyncReads::GetEvents> used_get_events{get_events};

}  // namespace

AsyncReads::AsyncReads() {
  if (::syscall(SYS_io_setup, kMost, &context_) != 0) context_ = 0;
}

AsyncReads::~AsyncReads() {
  if (context_ != 0) ::syscall(SYS_io_destroy, context_);
}

void AsyncReads::stand_in(GetEvents events) noexcept {
  used_get_events = events == nullptr ? get_events : events;
}

void AsyncReads::add(std::size_t number, const DirectFile& file, const BlockRead& read) noexcept {
  iocb& request = requests_[number];
  request = {};
  request.aio_data = number;
  request.aio_fildes = static_cast<std::uint32_t>(file.descriptor());
  request.aio_lio_opcode = IOCB_CMD_PREADV;
  request.aio_buf = reinterpret_cast<std::uintptr_t>(read.places().data());
  request.aio_nbytes = read.places().size();
  request.aio_offset = static_cast<std::int64_t>(read.offset());
  added_[added_count_++] = &request;
  ++under_way_;
}

void AsyncReads::begin() noexcept {
  while (begun_ < added_count_) {
    const long begun = ::syscall(SYS_io_submit, context_, added_count_ - begun_, added_.data() + begun_);
    if (begun <= 0) break;  // wait() reports those that are left
    begun_ += static_cast<std::size_t>(begun);
  }
}

void AsyncReads::wait(FunctionRef<void(std::size_t number, std::size_t got)> done) noexcept {
  const std::size_t refused = added_count_ - begun_;
  for (std::size_t i = begun_; i < added_count_; ++i) done(static_cast<std::size_t>(added_[i]->aio_data), 0);
  added_count_ = begun_ = 0;
  under_way_ -= refused;
  if (refused > 0 || under_way_ == 0) return;
  std::array<io_event, kMost> events;
  long got = 0;
  do {
    got = used_get_events.load()(context_, 1, kMost, events.data());
  } while (got <= 0 && errno == EINTR);
  for (const io_event& event : std::span(events).first(static_cast<std::size_t>(std::max(got, 0L)))) {
    done(static_cast<std::size_t>(event.data),
         static_cast<std::size_t>(std::max<std::int64_t>(event.res, 0)));
    --under_way_;
  }
}

}  // namespace penstock
