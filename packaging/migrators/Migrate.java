import org.flywaydb.core.Flyway;

/** Runs the migrations of a folder with Flyway. Usage: Migrate URL USER FOLDER */
public class Migrate {
    public static void main(String[] arguments) {
        Flyway.configure()
                .dataSource(arguments[0], arguments[1], "")
                .locations("filesystem:" + arguments[2])
                .load()
                .migrate();
    }
}
