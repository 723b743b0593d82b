// One agent and several stores between which it is moved: stores that are set back to an older
// copy, other stores that know nothing, and the first one again. What the stores hold together must
// account for every record that counts as acknowledged.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/export/exporter.h"
#include "agent/export/wire.h"
#include "tests/support/fake_clock.h"

namespace statcollect {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kBatchBytes = 1u << 20;  // eight of them fill the agent's ring

// A store as the protocol describes it: records by number, and a watermark.
struct ModelStore {
  StoreIdentity identity;
  std::uint64_t watermark = 0;
  std::map<std::uint64_t, std::string> records;  // by number: the text of the event
  std::string error;                             // what was wrong with a batch
};

// Text of the only event of a batch, without its padding.
std::string TextOf(const std::string& bytes) {
  for (const char* mark : {"record-", "records were lost", "definitions_repeated"}) {
    const std::size_t at = bytes.find(mark);
    if (at == std::string::npos) continue;
    if (mark != std::string("record-")) return "repair";
    return bytes.substr(at, bytes.find('.', at) - at);
  }
  return "unknown";
}

class StoresTransport final : public Transport {
 public:
  class ModelStream final : public Stream {
   public:
    ModelStream(StoresTransport* owner, StreamReceiver* receiver)
        : owner_(owner), receiver_(receiver) {}
    ~ModelStream() override {
      owner_->SetOpen(nullptr);
      End({});
    }
    // From the test's thread.
    void Break() {
      if (!ended_.exchange(true)) receiver_->OnEnd();
    }

    bool SendHello(const SessionInfo&, std::uint64_t) override {
      Welcome welcome{.attempt = 1};
      owner_->With([&](ModelStore& store) {
        store_ = &store;
        welcome.durable_seq = store.watermark;
        if (owner_->tells_identity_) welcome.store = store.identity;
      });
      owner_->SetOpen(this);
      receiver_->OnWelcome(welcome);
      return true;
    }
    bool Send(const EncodedBatch& batch) override {
      std::uint64_t durable = 0;
      Status refused;
      owner_->With([&](ModelStore& store) {
        refused = store_ == &store ? Take(batch, &store) : kLost;
        durable = store.watermark;
      });
      if (!refused.ok()) return End(refused);
      if (owner_->acknowledges_) receiver_->OnAck(durable);
      return true;
    }
    bool SendGoodbye(const AgentCounters&) override {
      End(Status::Ok());
      return true;
    }
    void Cancel() override {}
    Status Finish() override {
      owner_->SetOpen(nullptr);
      End({Code::kCancelled, "cancelled"});
      return status_;
    }

   private:
    // As IngestSession does.
    static Status Take(const EncodedBatch& batch, ModelStore* store) {
      if (batch.last_seq() <= store->watermark) return Status::Ok();
      if (batch.first_seq - batch.skipped > store->watermark + 1) {
        store->error = "a gap before " + std::to_string(batch.first_seq);
        return {Code::kOutOfRange, store->error};
      }
      store->records[batch.first_seq] = TextOf(batch.bytes);
      store->watermark = batch.last_seq();
      return Status::Ok();
    }
    bool End(const Status& status) {
      if (ended_.exchange(true)) return false;
      status_ = status;
      receiver_->OnEnd();
      return false;
    }

    inline static const Status kLost{Code::kUnavailable, "the connection was lost"};
    StoresTransport* const owner_;
    StreamReceiver* const receiver_;
    const ModelStore* store_ = nullptr;
    std::atomic<bool> ended_ = false;
    Status status_ = kLost;
  };

  std::unique_ptr<Stream> Open(StreamReceiver* receiver) override {
    return std::make_unique<ModelStream>(this, receiver);
  }

  // The connection breaks, and the agent's next one meets this store.
  void Meet(ModelStore* store) {
    {
      std::lock_guard lock(mutex_);
      store_ = store;
    }
    Break();
  }
  void SetOpen(ModelStream* stream) {
    std::lock_guard lock(open_mutex_);
    open_ = stream;
  }
  template <typename Use>
  void With(const Use& use) {
    std::lock_guard lock(mutex_);
    use(*store_);
  }
  // Off: acknowledgements are lost. On again: with the connection.
  void Acknowledge(bool on) {
    if (!acknowledges_.exchange(on) && on) Break();
  }
  void TellIdentity(bool on) { tells_identity_ = on; }

 private:
  void Break() {
    std::lock_guard lock(open_mutex_);
    if (open_ != nullptr) open_->Break();
  }

  std::mutex mutex_, open_mutex_;
  ModelStream* open_ = nullptr;
  ModelStore* store_ = nullptr;
  std::atomic<bool> acknowledges_{true}, tells_identity_{true};
};

class RollbackTest : public ::testing::Test {
 protected:
  ~RollbackTest() override {
    exporter_.reset();
    if (!spill_.directory.empty()) std::filesystem::remove_all(spill_.directory);
  }

  static ModelStore NewStore(std::uint8_t id) { return {.identity = {.id = {id}, .epoch = id}}; }
  // As a checkpoint of `store` that is restored now.
  ModelStore Restored(const ModelStore& store) {
    ModelStore copy = store;
    copy.identity.epoch = ++epochs_;
    return copy;
  }

  void Start(ModelStore* store) {
    transport_.Meet(store);
    exporter_ = std::make_unique<Exporter>(
        SessionInfo{},
        ExporterOptions{
            .collector = "c:1", .backoff = {milliseconds(1), milliseconds(2)}, .spill = spill_},
        &transport_, &ledger_, &log_, [] {});
    exporter_->Start();
    ASSERT_TRUE(exporter_->WaitForWelcome(In(seconds(30)), true).ok());
  }
  void Submit(int count, std::size_t bytes = kBatchBytes) {
    for (int i = 0; i < count; ++i) {
      RecordBatch batch;
      const std::string name = "record-" + std::to_string(++produced_) + ".";
      batch.events.resize(1, {.kind = "note", .text = name + std::string(bytes - 100, 'x')});
      ledger_.Produce();
      exporter_->Submit(std::move(batch), 0);
      (void)exporter_->Tend();
    }
  }
  bool Settle() {
    for (const auto deadline = In(seconds(60)); std::chrono::steady_clock::now() < deadline;) {
      (void)exporter_->Tend();
      if (ledger_.Snapshot().pending == 0) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }
  static Exporter::TimePoint In(milliseconds wait) {
    return std::chrono::steady_clock::now() + wait;
  }

  // After the end of the session.
  void ExpectLedgerHolds(const std::vector<const ModelStore*>& stores) {
    const AgentCounters counters = ledger_.Snapshot();
    EXPECT_EQ(counters.produced, counters.acked + counters.dropped() + counters.pending);
    EXPECT_EQ(counters.pending, 0u);
    std::set<std::string> somewhere;
    std::map<std::uint64_t, std::string> meaning;  // of each number; repairs are for one store
    std::size_t repairs = 0;
    for (const ModelStore* store : stores) {
      EXPECT_EQ(store->error, "");
      std::set<std::string> here;
      for (const auto& [seq, text] : store->records) {
        if (text == "repair") {
          ++repairs;
          continue;
        }
        EXPECT_TRUE(here.insert(text).second) << text << " is stored twice";
        somewhere.insert(text);
        EXPECT_EQ(meaning.try_emplace(seq, text).first->second, text) << "number " << seq;
      }
    }
    const std::uint64_t nowhere = produced_ - somewhere.size();
    EXPECT_LE(counters.acked, somewhere.size() + repairs) << "acknowledged, and in no store";
    EXPECT_LE(nowhere, counters.dropped()) << "lost, and not counted as dropped";
  }

  testing::FakeClock clock_;
  std::vector<std::string> lines_;
  LogLimiter log_{&clock_, [this](const std::string& line) { lines_.push_back(line); }};
  Ledger ledger_;
  StoresTransport transport_;
  SpillOptions spill_;
  std::unique_ptr<Exporter> exporter_;
  std::uint64_t produced_ = 0, epochs_ = 1000;
};

TEST_F(RollbackTest, TheFirstStoreAgainAcknowledgesNothingThatItNeverGot) {
  ModelStore first = NewStore(1);
  Start(&first);
  Submit(4);
  ASSERT_TRUE(Settle());
  ModelStore restored = Restored(first);
  Submit(26);
  ASSERT_TRUE(Settle());  // 1..30, of which the agent holds the last ones only
  transport_.Meet(&restored);
  Submit(1);
  ASSERT_TRUE(Settle());
  transport_.Acknowledge(false);  // what is sent now is lost with the connection
  Submit(5, 1000);
  transport_.Meet(&first);
  transport_.Acknowledge(true);
  ASSERT_TRUE(Settle());
  Submit(1, 1000);
  ASSERT_TRUE(exporter_->Finish(In(seconds(30))).ok());
  ExpectLedgerHolds({&first, &restored});
  for (const std::string last : {"record-32", "record-37"}) {
    EXPECT_TRUE(std::any_of(first.records.begin(), first.records.end(),
                            [&](const auto& record) { return record.second == last; }))
        << last << " was produced while the agent had not met the first store again";
  }
}

TEST_F(RollbackTest, SaysThatItIsAnotherStore) {
  ModelStore first = NewStore(1), other = NewStore(2);
  Start(&first);
  Submit(20);
  ASSERT_TRUE(Settle());
  transport_.Meet(&other);
  Submit(1);
  ASSERT_TRUE(Settle());
  ASSERT_TRUE(exporter_->Finish(In(seconds(30))).ok());
  ExpectLedgerHolds({&first, &other});
  log_.FlushLosses();
  const bool said = std::any_of(lines_.begin(), lines_.end(), [](const std::string& line) {
    return line.find("a different one now") != std::string::npos;
  });
  EXPECT_TRUE(said);
}

TEST_F(RollbackTest, ACollectorThatKnowsNoGapsIsServedAsBefore) {
  ModelStore first = NewStore(1);
  transport_.TellIdentity(false);
  Start(&first);
  Submit(4);
  ASSERT_TRUE(Settle());
  ModelStore older = first;
  Submit(20);
  ASSERT_TRUE(Settle());
  transport_.Meet(&older);
  Submit(1);
  ASSERT_TRUE(Settle());
  ASSERT_TRUE(exporter_->Finish(In(seconds(30))).ok());
  EXPECT_EQ(older.error, "");
  EXPECT_EQ(older.records.size(), older.watermark) << "no numbers are skipped";
  EXPECT_EQ(older.records.rbegin()->second, "record-25");
}

// Random moves; the seed is in the name of the test.
class RandomRollbackTest : public RollbackTest, public ::testing::WithParamInterface<int> {};

TEST_P(RandomRollbackTest, TheStoresHoldWhatCountsAsAcknowledged) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(1, n)(random); };
  if (GetParam() % 2 == 1) {
    std::string pattern = ::testing::TempDir() + "/rollback_XXXXXX";
    spill_.directory = mkdtemp(pattern.data());
  }
  std::vector<std::unique_ptr<ModelStore>>
      stores;  // every one that ever was, also the replaced ones
  std::vector<ModelStore> checkpoints;
  stores.push_back(std::make_unique<ModelStore>(NewStore(1)));
  Start(stores[0].get());
  for (int move = 0; move < 40; ++move) {
    switch (upto(6)) {
      case 1:
        transport_.Meet(
            stores[static_cast<std::size_t>(upto(static_cast<int>(stores.size())) - 1)].get());
        break;
      case 2:
        transport_.With([&](ModelStore& store) { checkpoints.push_back(store); });
        break;
      case 3:
        if (checkpoints.empty()) break;
        stores.push_back(std::make_unique<ModelStore>(Restored(checkpoints[static_cast<std::size_t>(
            upto(static_cast<int>(checkpoints.size())) - 1)])));
        transport_.Meet(stores.back().get());
        break;
      case 4:
        transport_.Acknowledge(upto(2) == 1);
        break;
      case 5:
        transport_.Acknowledge(true);
        Submit(upto(16));
        ASSERT_TRUE(Settle()) << "seed " << GetParam();
        break;
      default:
        if (spill_.directory.empty()) transport_.Acknowledge(true);
        Submit(upto(3), 5000);
    }
  }
  transport_.Acknowledge(true);
  transport_.Meet(stores[0].get());
  ASSERT_TRUE(Settle()) << "seed " << GetParam();
  ASSERT_TRUE(exporter_->Finish(In(seconds(30))).ok()) << exporter_->failure().message();
  std::vector<const ModelStore*> all;
  for (const auto& store : stores) all.push_back(store.get());
  ExpectLedgerHolds(all);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomRollbackTest, ::testing::Range(1, 13));

}  // namespace
}  // namespace statcollect
