package walgate

import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.fs.Path
import org.apache.hadoop.mapreduce.{JobContext, TaskAttemptContext}
import org.apache.spark.internal.io.{FileCommitProtocol, FileNameSpec}
import org.apache.spark.internal.io.FileCommitProtocol.TaskCommitMessage

import scala.collection.mutable

/** Lets Spark write the files of an attempt to an object store under their final names.
  *
  * Spark's own protocol renames each file twice, and a store copies it each time. Here the files
  * get their names in the folder of the table. `path` is a folder of the attempt,
  * TABLE/_attempts/NAME. Readers do not see the files before a commit names them.
  *
  * Spark may run a task twice, and takes one of the two. So each run of a task has file names of its
  * own, and the job lists the names of those that Spark took. `lake_layout.py` has the same names.
  */
class DirectCommitProtocol(job: String, path: String, dynamicOverwrite: Boolean)
    extends FileCommitProtocol
    with Serializable {

  @transient private var written: mutable.Buffer[Path] = null

  override def setupJob(context: JobContext): Unit = ()

  override def setupTask(context: TaskAttemptContext): Unit = {
    written = mutable.Buffer()
  }

  override def newTaskTempFile(
      context: TaskAttemptContext, dir: Option[String], spec: FileNameSpec
  ): String = {
    require(dir.isEmpty, "a table of the lake has no partitions")
    val folder = new Path(path)
    val run = context.getTaskAttemptID
    val name = s"part-${folder.getName}-${run.getTaskID.getId}-${run.getId}${spec.suffix}"
    val file = new Path(folder.getParent.getParent, name)
    written += file
    file.toString
  }

  override def newTaskTempFile(
      context: TaskAttemptContext, dir: Option[String], ext: String
  ): String = newTaskTempFile(context, dir, FileNameSpec("", ext))

  override def newTaskTempFileAbsPath(
      context: TaskAttemptContext, dir: String, ext: String
  ): String = throw new UnsupportedOperationException("a table of the lake has no partitions")

  override def commitTask(context: TaskAttemptContext): TaskCommitMessage =
    new TaskCommitMessage(written.map(_.getName).toList)

  override def abortTask(context: TaskAttemptContext): Unit =
    written.foreach(file => file.getFileSystem(context.getConfiguration).delete(file, false))

  override def commitJob(context: JobContext, tasks: Seq[TaskCommitMessage]): Unit = {
    val names = tasks.flatMap(_.obj.asInstanceOf[List[String]])
    val list = new Path(path, "files.txt")
    val out = list.getFileSystem(context.getConfiguration).create(list, false)
    try out.write(names.mkString("\n").getBytes(UTF_8))
    finally out.close()
  }

  // The attempt that began the job removes its files.
  override def abortJob(context: JobContext): Unit = ()
}
