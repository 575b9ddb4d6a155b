#include "failures/fails_at_every.hpp"

#include <gtest/gtest.h>

namespace penstock::testing {
namespace {

class Failures : public ::testing::TestWithParam<Scenario> {};
INSTANTIATE_TEST_SUITE_P(, Failures, ::testing::ValuesIn(scenarios()),
                         [](const auto& each) { return each.param.name; });

TEST_P(Failures, AnyCallMayFail) { fails_at_every(GetParam()); }

}  // namespace
}  // namespace penstock::testing
