"""Files that programs write."""

from benchmarks.generated.part import Part

PARTS = (
    Part(
        name="log that is appended to",
        after="""
            with open("log.txt", "a") as file:
                file.write(f"{$step} {loss.item():.6f}\\n"); moment("log")
        """,
    ),
    Part(
        name="log that stays open",
        setup="$log = open('open.log', 'w')",
        after='$log.write(f"{$step} {loss.item():.6f}\\n")',
        epoch="$log.flush(); moment('flushed')",
        end="$log.close()",
    ),
    Part(
        name="table in CSV",
        setup="""
            $table_file = open("table.csv", "w", newline="")
            $table = csv.DictWriter($table_file, ["step", "loss"]); $table.writeheader()
        """,
        after="$table.writerow({'step': $step, 'loss': loss.item()})",
        epoch="$table_file.flush()",
        end="$table_file.close()",
    ),
    Part(
        name="history in JSON, rewritten",
        setup="$written = {'values': [], 'steps': []}",
        evaluation="""
            $written["values"].append($value); $written["steps"].append($step)
            with open("history.json", "w") as file:
                moment("json opened"); json.dump($written, file)
        """,
    ),
    Part(
        name="JSON that is read, changed and written",
        evaluation="""
            path = pathlib.Path("metrics.json")
            read = json.loads(path.read_text()) if path.exists() else []
            read.append([$step, $value]); path.write_text(json.dumps(read)); moment("json")
        """,
    ),
    Part(
        name="best model by rename",
        setup="$best_saved = math.inf",
        evaluation="""
            if $value < $best_saved:
                $best_saved = $value
                torch.save($model.state_dict(), "best.tmp"); moment("saved")
                os.replace("best.tmp", "best.pt"); moment("renamed")
        """,
    ),
    Part(
        name="best model by its name",
        setup="$best_name, $best_figure = None, math.inf",
        evaluation="""
            if $value < $best_figure:
                if $best_name: os.remove($best_name); moment("removed")
                $best_figure, $best_name = $value, f"best-{$step:03}-{$value:.3f}.pt"
                torch.save($model.state_dict(), $best_name)
        """,
    ),
    Part(
        name="rotating checkpoints",
        epoch="""
            torch.save({"model": $model.state_dict(), "step": $step}, f"ck-{$step:04}.pt")
            moment("rotated")
            for old in sorted(glob.glob("ck-*.pt"))[:-2]: os.remove(old)
        """,
    ),
    Part(
        name="last checkpoint overwritten",
        epoch="""
            torch.save({"model": $model.state_dict(), "optimizer": $optimizer.state_dict()}, "last.pt")
        """,
    ),
    Part(
        name="arrays in files",
        evaluation="np.save('logits.npy', logits.numpy()); np.savez('both.npz', v=$value)",
    ),
    Part(
        name="pickle of figures",
        setup="$figures_kept = {}",
        evaluation="""
            $figures_kept[$step] = $value
            with open("figures.pkl", "wb") as file: pickle.dump($figures_kept, file)
        """,
    ),
    Part(
        name="logging to a file",
        setup="""
            $logger = logging.getLogger("training"); $logger.setLevel("INFO")
            $logger.addHandler(logging.FileHandler("training.log"))
        """,
        after="""
            if $step % 4 == 0: $logger.info("step %d loss %.5f", $step, loss.item())
        """,
    ),
    Part(
        name="lines changed in place",
        setup="open('place.txt', 'w').close()",
        epoch="""
            with open("place.txt", "r+") as file:
                lines = file.readlines(); file.seek(0); file.truncate()
                moment("truncated")
                file.writelines(lines[-3:] + [f"{$epoch} {$step}\\n"])
        """,
    ),
    Part(
        name="folder for each epoch",
        epoch="""
            folder = pathlib.Path("epochs") / f"{len(os.listdir('epochs')) if os.path.isdir('epochs') else 0}"
            folder.mkdir(parents=True); (folder / "step.txt").write_text(str($step))
        """,
    ),
    Part(
        name="state that it would resume from",
        setup="""
            $resumed = os.path.exists("state.pt")
            if $resumed:
                loaded = torch.load("state.pt"); $model.load_state_dict(loaded["model"])
                $step = loaded["step"]; print("resumed", $step)
        """,
        epoch="torch.save({'model': $model.state_dict(), 'step': $step}, 'state.pt')",
    ),
    Part(
        name="compressed log",
        epoch="""
            with gzip.GzipFile("values.gz", "ab", mtime=0) as file: file.write(f"{$step}\\n".encode())
        """,
    ),
    Part(
        name="bytes in memory",
        setup="$memory = io.BytesIO(); $text = io.StringIO()",
        after='$text.write(f"{$step},"); $memory.write(bytes([$step % 256]))',
        end="open('memory.bin', 'wb').write($memory.getvalue())",
    ),
    Part(
        name="best weights read back",
        setup="$best_read = math.inf; torch.save($model.state_dict(), 'good.pt')",
        evaluation="""
            if $value < $best_read:
                $best_read = $value; torch.save($model.state_dict(), "good.pt")
            elif $value > $best_read * 1.05:
                $model.load_state_dict(torch.load("good.pt")); print("back", $step)
        """,
    ),
    Part(
        name="symbolic link to the latest",
        epoch="""
            torch.save($model.state_dict(), f"link-{$step}.pt")
            if os.path.lexists("latest.pt"): os.remove("latest.pt")
            os.symlink(f"link-{$step}.pt", "latest.pt")
        """,
    ),
)
