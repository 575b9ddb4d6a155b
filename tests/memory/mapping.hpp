#pragma once

#include "memory/host_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>

namespace penstock::testing {

/// Pages of their own, with any protection; unmapped at the end.
class Mapping {
 public:
  explicit Mapping(std::size_t pages, int protection = PROT_READ | PROT_WRITE, int file = -1)
      : bytes_(pages * page_bytes()),
        data_(static_cast<std::byte*>(mmap(nullptr, bytes_, protection,
                                           file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0))) {
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~Mapping() { munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* page(std::size_t index) const { return data_ + index * page_bytes(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

}  // namespace penstock::testing
