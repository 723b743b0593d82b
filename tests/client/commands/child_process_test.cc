// Programs that statctl runs for the user.
#include "client/commands/child_process.h"

#include <sched.h>

#include <gtest/gtest.h>

namespace statcollect::client {
namespace {

// A signal may come before statctl knows the program's pid: this program sends one as soon as it
// runs, on the only processor.
TEST(ChildProcess, GetsASignalThatCameAsItStarted) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const std::string script =
      "trap 'exit 3' TERM; kill -TERM $PPID; i=0; while [ $i -lt 300 ]; do sleep 0.01; i=$((i+1)); "
      "done";
  for (int i = 0; i < 100; ++i) {
    const auto end = RunChild({"sh", "-c", script}, {}, ChildOutput::kKept);
    ASSERT_TRUE(end.ok()) << end.status().message();
    ASSERT_EQ(end->code, 3) << "at start " << i << " the signal was lost";
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(ChildProcess, RunsInAFolderAndSaysIfThereIsNone) {
  const auto end = RunChild({"sh", "-c", "pwd; exit 4"}, {}, ChildOutput::kRead, "/usr");
  ASSERT_TRUE(end.ok()) << end.status().message();
  EXPECT_EQ(end->tail, "/usr\n");
  EXPECT_EQ(end->code, 4);
  const auto nowhere = RunChild({"true"}, {}, ChildOutput::kRead, "/no/such/folder");
  EXPECT_EQ(nowhere.status().code(), Code::kNotFound) << nowhere.status().message();
}

}  // namespace
}  // namespace statcollect::client
