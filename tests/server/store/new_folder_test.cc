// A new folder is durable once the folder that holds it has been synced. No file system at hand
// forgets entries that were not, so the syncs themselves are watched: this program's fsync, which
// takes the C library's place.
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/rocksdb/rocksdb_store.h"

namespace {

std::mutex mutex;
std::set<std::string> synced;  // under mutex

}  // namespace

extern "C" int fsync(int descriptor) {
  std::error_code error;
  const auto path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error);
  {
    const std::lock_guard lock(mutex);
    synced.insert(path.string());
  }
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

namespace statcollect {
namespace {

using ::testing::Contains;
using ::testing::Not;

TEST(NewFolder, EachFolderThatHoldsANewOneIsSynced) {
  std::string root = ::testing::TempDir() + "/statcollect_new_folder_XXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  root = std::filesystem::canonical(root);
  const std::string made = root + "/a/b";
  const auto synced_by_opening = [&] {
    {
      const std::lock_guard lock(mutex);
      synced.clear();
    }
    EXPECT_TRUE(OpenRocksDbStore(made, {}).ok());
    const std::lock_guard lock(mutex);
    return synced;
  };
  const auto first = synced_by_opening();
  for (const std::string& holder : {root, root + "/a", made}) EXPECT_THAT(first, Contains(holder));
  EXPECT_THAT(synced_by_opening(), Not(Contains(root + "/a"))) << "nothing is new there";
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace statcollect
