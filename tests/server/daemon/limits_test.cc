#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include <gtest/gtest.h>

#include "server/daemon/descriptors.h"
#include "server/daemon/grpc_listener.h"

namespace statcollect {
namespace {

using Clock = std::chrono::steady_clock;

int Socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

TEST(OpenConnections, CountsThoseThatItsUserHasNotClosed) {
  OpenConnections open;
  const auto now = Clock::now();
  std::vector<int> sockets;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(open.Full(3, now));
    sockets.push_back(Socket());
    open.Add(sockets.back());
  }
  EXPECT_TRUE(open.Full(3, now));
  close(sockets[1]);
  EXPECT_TRUE(open.Full(3, now)) << "it looks at most every 50 ms";
  EXPECT_FALSE(open.Full(3, now + std::chrono::milliseconds(51)));
  EXPECT_EQ(open.size(), 2u);
  // Another socket, and a file, under the descriptors of connections: not those connections.
  close(sockets[0]);
  close(sockets[2]);
  const int other = Socket(), file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_FALSE(open.Full(2, now + std::chrono::seconds(1)));
  EXPECT_EQ(open.size(), 0u);
  close(other);
  close(file);
}

TEST(DescriptorBudget, LeavesTheStoreItsShare) {
  for (const std::uint64_t all : {20ull, 64ull, 256ull, 1024ull, 20'000ull, 65'536ull, ~0ull}) {
    const DescriptorBudget budget = DivideDescriptors(all);
    EXPECT_GT(budget.connections_end, 0) << all;
    EXPECT_GT(budget.store_files, 0) << all;
    EXPECT_LT(static_cast<std::uint64_t>(budget.connections_end) +
                  static_cast<std::uint64_t>(budget.store_files),
              all)
        << all;
  }
  EXPECT_GE(DivideDescriptors(65'536).connections_end, 50'000);
  EXPECT_GE(DivideDescriptors(1024).connections_end, 512);
}

TEST(GrpcListener, SaysWhoHoldsThePort) {
  const auto first =
      GrpcListener::Open({.host = "127.0.0.1", .port = 0}, {}, [](const std::string&) {});
  ASSERT_TRUE(first.ok()) << first.status().message();
  const Endpoint taken = (*first)->endpoint();
  EXPECT_NE(taken.port, 0);
  const auto second = GrpcListener::Open(taken, {}, [](const std::string&) {});
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_NE(second.status().message().find(taken.ToString()), std::string::npos);
  EXPECT_NE(second.status().message().find("--listen"), std::string::npos);
  const auto wrong =
      GrpcListener::Open({.host = "203.0.113.1", .port = 0}, {}, [](const std::string&) {});
  EXPECT_EQ(wrong.status().code(), Code::kUnavailable) << "an address of no machine";
}

}  // namespace
}  // namespace statcollect
