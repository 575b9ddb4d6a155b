#include "loader/production_thread.hpp"

#include "core/shared/start_thread.hpp"

#include <utility>

namespace penstock {

ProductionThread::ProductionThread(const char* name, std::function<void()> run,
                                   std::function<void()> end_waits)
    : name_(name), run_(std::move(run)), end_waits_(std::move(end_waits)) {}

void ProductionThread::begin() {
  ending_ = false;
  thread_ = start_thread(name_, run_);
}

void ProductionThread::end() {
  ending_ = true;
  end_waits_();
  if (thread_.joinable()) thread_.join();
}

}  // namespace penstock
