#include "device/cuda/cuda_context.hpp"

namespace penstock::cuda {

PrimaryContext::PrimaryContext(const Driver& driver, Ordinal device) : driver_(driver), device_(device) {
  driver_.check(driver_.primary_ctx_retain(&context_, device_), driver_.primary_ctx_retain.name);
}

PrimaryContext::~PrimaryContext() {
  if (forked()) return;
  release(*this, driver_.ctx_synchronize);
  driver_.primary_ctx_release(device_);
}

}  // namespace penstock::cuda
