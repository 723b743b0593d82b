#include "server/transfer/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/capture_requests.h"

namespace statcollect::transfer {
namespace {

using ::testing::HasSubstr;

TEST(Documents, LaunchesAreRenumberedAndUnknownOnesLeftOut) {
  CaptureRequest request{.id = 4, .attempt = 77, .ranks = {1, 3}, .asked_unix_nanos = 5};
  request.spec = *CaptureSpec::FromArguments({{"activation", "ln"}, {"steps", "12"}});
  CaptureRequest gone = request;
  gone.attempt = 5;
  const auto captures = Renumbered("captures", EncodeCaptureRequests({request, gone}), {{77, 2}});
  ASSERT_TRUE(captures.ok());
  const auto read = DecodeCaptureRequests(*captures);
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ(read->front().attempt, 2u);
  EXPECT_EQ(read->front().ranks, (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(*Renumbered("alarms", "77 0 9\n77 1 8\n5 0 3\n", {{77, 2}}), "2 0 9\n2 1 8\n");
  const std::string bytes("\0\xff noise", 8);
  EXPECT_EQ(*Renumbered("noise", bytes, {{77, 2}}), bytes);
}

TEST(Documents, WhatDoesNotParseIsRefused) {
  EXPECT_EQ(Renumbered("captures", "garbage", {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Renumbered("alarms", "1 x 2\n", {}).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(IsDocument("noise"));
  EXPECT_FALSE(IsDocument("secrets"));
}

}  // namespace
}  // namespace statcollect::transfer
