"""The mechanisms that are taken out, one at a time, and the tests that must then fail."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    mechanism: str  # what is broken, in words
    file: str
    old: str  # must occur exactly once
    new: str
    program: str
    cases: str  # --gtest_filter
    rounds: int = 0  # of a randomised test that needs more than its short form


SIMULATED = "Simulation.NothingAcknowledgedIsLostOrDoubledWhateverBefalls"
SIMULATED_ROCKSDB = "Simulation.NothingAcknowledgedIsLostOrDoubledOverRocksDb"
REGISTRY = "server/ingest/registry.cc"
QUEUE = "server/ingest/commit_queue.cc"
SESSION = "server/ingest/session.cc"
EXPORTER = "agent/export/exporter.cc"
WINDOW = "agent/export/send_window.cc"

MUTANTS = [
    Mutant(
        "ack_before_write",
        "records are acknowledged before they are written",
        QUEUE,
        "    status = store_.Append(items);\n",
        "    for (const CommitItem& item : kept) item.done(Status::Ok());\n    status = store_.Append(items);\n",
        "simulation_test",
        SIMULATED,
    ),
    Mutant(
        "ack_of_failed_write",
        "a failed write is acknowledged",
        QUEUE,
        "  const Status failure = status.ok() ? Status::Ok() : ReadOnly(status);\n  if (!failure.ok()) read_only_",
        "  const Status failure;\n  if (!failure.ok()) read_only_",
        "simulation_test",
        SIMULATED,
    ),
    Mutant(
        "no_fencing",
        "the queued records of a fenced stream are still written",
        QUEUE,
        "  if (lane->failure.ok()) lane->failure = why;\n  append_done_",
        "  (void)why;\n  append_done_",
        "simulation_test",
        SIMULATED,
    ),
    Mutant(
        "no_wait_for_fenced_write",
        "fencing does not wait for the write under way",
        QUEUE,
        "  append_done_.wait(mutex_, [&]() STATCOLLECT_REQUIRES(mutex_) { return !lane->appending; });\n",
        "",
        "simulation_test",
        SIMULATED,
    ),
    Mutant(
        "no_fencing_by_joining_rank",
        "only the first rank of a newer launch fences its place",
        REGISTRY,
        "  for (const AttemptMeta& attempt : older) Retire({attempt.id, info.rank}, Fenced(info), endings);\n",
        "",
        "simulation_test",
        SIMULATED,
    ),
    Mutant(
        "no_duplicate_detection",
        "records that are sent again are stored again",
        SESSION,
        "  if (batch.last_seq() <= received()) {\n    accepted.duplicates = batch.records();\n    accepted.meta = Tallies();\n"
        "    return accepted;\n  }\n  accepted.duplicates = received() + 1 - std::min(batch.first_seq, received() + 1);\n"
        "  TrimFront(&batch, accepted.duplicates);\n",
        "",
        "simulation_test",
        SIMULATED,
    ),
    Mutant(
        "no_trimming",
        "the stored part of a batch is not cut off",
        SESSION,
        "  TrimFront(&batch, accepted.duplicates);\n",
        "",
        "ingest_test",
        "IngestSessionTest.Trims*",
    ),
    Mutant(
        "no_sync",
        "writes are not synced",
        "server/store/rocksdb/recovery.cc",
        "  options.sync = sync;\n",
        "  options.sync = sync && false;\n",
        "simulation_test",
        SIMULATED_ROCKSDB,
    ),
    Mutant(
        "no_sync_store",
        "the same, tested with the store alone",
        "server/store/rocksdb/recovery.cc",
        "  options.sync = sync;\n",
        "  options.sync = sync && false;\n",
        "store_fault_test",
        "StoreFaultTest.PowerCutsAtRandomOperationsLoseNothingAcknowledged",
    ),
    Mutant(
        "hole_in_log",
        "after a power cut without syncs, the logs after a gap are read",
        "server/store/rocksdb/database_opener.cc",
        "  if (!fsync_ || database.lost) database.log_filter =",
        "  if (false) database.log_filter =",
        "store_fault_test",
        "StoreFaultTest.WithoutSyncsAPowerCutLosesAnEndAndLeavesNoHole",
        rounds=600,
    ),
    Mutant(
        "no_resend",
        "after a reconnect nothing is sent again",
        WINDOW,
        "  next_unsent_ = 0;\n  Free(durable_seq);\n",
        "  Free(durable_seq);\n",
        "simulation_test",
        SIMULATED,
    ),
    Mutant(
        "counted_twice",
        "the agent counts what a welcome acknowledges on top of what was acknowledged",
        WINDOW,
        "  return Counted(std::exchange(acked_seq_, durable_seq), durable_seq);\n",
        "  acked_seq_ = durable_seq;\n  return Counted(0, durable_seq);\n",
        "simulation_test",
        SIMULATED,
    ),
    Mutant(
        "overtaking",
        "new batches overtake those in the spill file",
        "agent/export/exporter.h",
        "    return spill_.records() == 0 && window_.HasRoom();\n",
        "    return window_.HasRoom();\n",
        "simulation_test",
        SIMULATED,
    ),
    Mutant(
        "spill_not_kept",
        "the spill file is removed at the end, whatever is in it",
        EXPORTER,
        "  const bool whole = AppendToFile(held).ok();\n",
        "  file_->Remove();\n  const bool whole = AppendToFile(held).ok();\n",
        "simulation_test",
        SIMULATED,
    ),
    Mutant(
        "fatal_drops_file",
        "a status that ends the session deletes the spill file",
        EXPORTER,
        "    keep = file_ != nullptr;\n",
        "    keep = false;\n",
        "export_test",
        "ExporterTest.EveryStatusInTheMiddleLeavesTheRecordsDeliveredOrInTheFile",
    ),
    Mutant(
        "unbounded_queue",
        "the committer accepts any number of bytes",
        QUEUE,
        "  return bytes_ == 0 || bytes_ + bytes <= options_.queue_bytes_max;\n",
        "  return bytes_ + bytes > 0;\n",
        "ingest_test",
        "CommitterTest.MakesStreamsWaitWhenTheQueueIsFullAndLetsThemInInTurn",
    ),
    Mutant(
        "keep_ignored",
        "retention removes a run that is kept meanwhile",
        REGISTRY,
        "  if (kept)\n    return {Code::kFailedPrecondition,",
        "  if (false)\n    return {Code::kFailedPrecondition,",
        "ingest_test",
        "SessionRegistryTest.ARunThatIsKeptMeanwhileIsNotRemovedByRetention",
    ),
    Mutant(
        "replace_open_run",
        "`replace` removes a run that is being written",
        REGISTRY,
        "  if (open > 0) {\n",
        "  if (open > 1'000'000) {\n",
        "ingest_test",
        "SessionRegistryTest.ReplaceRefusesARunThatIsBeingWrittenOrKept",
    ),
    Mutant(
        "welcomed_refused",
        "after a restored checkpoint, welcomed sessions count as new",
        REGISTRY,
        "  const bool welcomed = info.attempt_start_unix_nanos != 0;\n",
        "  const bool welcomed = false;\n",
        "ingest_test",
        "SessionRegistryTest.AWelcomedSessionThatThisCollectorDoesNotKnowAppends",
    ),
    Mutant(
        "synced_unchecked",
        "what was synced is not looked for at the start",
        "server/store/rocksdb/database_opener.cc",
        "  return FindLosses(files, directory_, lengths);\n",
        "  return NoLosses();\n",
        "store_fault_test",
        "StoreDamageTest.*",
    ),
    Mutant(
        "mark_before_sync",
        "the mark of what was synced is written before the sync",
        "server/store/rocksdb/synced_files.cc",
        "    const std::uint64_t bytes = bytes_.load();\n    return Note(bytes, FSWritableFileOwnerWrapper::Sync(options, debug));",
        "    (void)Note(bytes_.load(), IOStatus::OK());\n    return FSWritableFileOwnerWrapper::Sync(options, debug);",
        "store_fault_test",
        "StoreFaultTest.PowerCutsAtRandomOperationsLoseNothingAcknowledged",
        rounds=400,
    ),
    Mutant(
        "mark_outlives_its_log",
        "the mark of a log is not gone from the disk before the log is",
        "server/store/rocksdb/synced_mark.cc",
        "    if (cleared.ok()) cleared = file_->Sync({}, nullptr);\n",
        "",
        "store_fault_test",
        "StoreFaultTest.PowerCutsAtRandomOperationsLoseNothingAcknowledged",
        rounds=400,
    ),
    Mutant(
        "mark_before_name",
        "the mark names a log whose name is not durable",
        "server/store/rocksdb/synced_mark.cc",
        "  if (journal.named) PutLocked(name);",
        "  PutLocked(name);",
        "store_fault_test",
        "SyncedMark.*",
    ),
    Mutant(
        "wire_crc_unchecked",
        "the checksum of a batch on the wire is not compared",
        "proto/convert/batch.cc",
        "crc != wire.crc()) {",
        "crc + 1 == 0 && crc != wire.crc()) {",
        "ingest_grpc_test",
        "*",
    ),
    Mutant(
        "stored_crc_unchecked",
        "the checksum of a stored value is not compared",
        "server/store/codec/sealed.cc",
        "  if (ByteReader(sealed.substr(sealed.size() - 4)).U32() != Crc32c(body))\n",
        "  if (sealed.empty())\n",
        "store_test",
        "StatBlock.EveryTruncationAndEveryFlippedBitIsSeen",
    ),
    Mutant(
        "compression_taken",
        "compressed messages are decompressed",
        "server/ingest/grpc_service.cc",
        "  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);\n",
        "",
        "ingest_grpc_test",
        "HostileStream.CompressedMessagesAreRefusedBeforeTheyAreTakenApart",
    ),
]
