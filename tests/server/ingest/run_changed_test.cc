// Who shows runs is called when one has changed, and when that can be seen: on the call the run is
// looked at once.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ingest/registry.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"
#include "tests/support/silent_stream.h"

namespace statcollect {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;
using testing::FakeStore;

class RunChangedTest : public ::testing::Test {
 protected:
  Result<Admission> Open(const std::shared_ptr<OpenStream>& stream) {
    SessionInfo info;
    info.run = "base";
    info.session = SessionId{1};
    info.world_size = 1;
    return registry_.Open(info, stream);
  }
  // What a page would find out about the run.
  std::string Seen(const std::string& run) {
    const auto attempts = store_.Attempts(run);
    if (attempts->empty()) return run + " is gone";
    if (registry_.HasOpenStream(run)) return run + " is open";
    return run + (store_.Census()->front().kept ? " is kept" : " is closed");
  }
  std::vector<std::string> Taken() { return std::exchange(seen_, {}); }

  FakeStore store_;
  FakeClock clock_;
  Committer committer_{store_, clock_, {}};
  std::vector<std::string> seen_;
  SessionRegistry registry_{store_, clock_, committer_, [] {},
                            [this](const std::string& run) { seen_.push_back(Seen(run)); }};
};

TEST_F(RunChangedTest, AStreamThatOpensAndCloses) {
  const auto stream = std::make_shared<testing::SilentStream>();
  const auto admission = Open(stream);
  ASSERT_TRUE(admission.ok());
  EXPECT_THAT(Taken(), ElementsAre("base is open"));
  registry_.Close(admission->attempt.id, 0, stream.get());
  EXPECT_THAT(Taken(), ElementsAre("base is closed"));
}

TEST_F(RunChangedTest, ARunThatIsKept) {
  const auto stream = std::make_shared<testing::SilentStream>();
  const auto admission = Open(stream);
  registry_.Close(admission->attempt.id, 0, stream.get());
  Taken();
  ASSERT_TRUE(registry_.KeepRun("base", true).ok());
  EXPECT_THAT(Taken(), ElementsAre("base is kept"));
}

TEST_F(RunChangedTest, ARunThatIsRemovedWhileItIsWritten) {
  ASSERT_TRUE(Open(std::make_shared<testing::SilentStream>()).ok());
  Taken();
  ASSERT_TRUE(registry_.DeleteRun("base", /*force=*/true).ok());
  ASSERT_FALSE(seen_.empty());
  EXPECT_EQ(seen_.back(), "base is gone");
}

}  // namespace
}  // namespace statcollect
